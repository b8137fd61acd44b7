"""The demo as a newcomer meets it: in processes of its own, in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import demo
import draw_demo
from support import FolderCase

TESTS = Path(__file__).resolve().parent
LIMIT_S = 20
PLAYED = ("CANARY in Boss's request to the model: yes / in Minh's: no",
          "a stranger is refused, and it cost no model call",
          "Minh saw the code and tried: refused, and the owner was alarmed",
          "ran once", "1 run of Minh's command")
NONSENSE = """
blah
: : :
minh
minh:
minh@nowhere: hello
minh@family: hello
bob: \x1b[31m\x00 join AAAAA-AAAAA
eve: /yolo
eve: /many
boss: /many approve ????
boss: /many approve 'unclosed
minh: run rm -rf /
minh: touch ../../outside
terminal: ls
terminal: /many claim
help
fresh
eve: hello"""


class DemoCase(FolderCase):
    def run_demo(self, *argv: str, typed: str | bytes = "") -> subprocess.CompletedProcess[str]:
        """The demo, with a temporary folder of its own that must be empty afterwards."""
        room = {name: str(self.folder) for name in ("TMPDIR", "TEMP", "TMP")}
        raw = typed if isinstance(typed, bytes) else typed.encode("utf-8")
        done = subprocess.run((sys.executable, str(TESTS / "demo.py"), *argv), input=raw,
                              capture_output=True, timeout=LIMIT_S, check=False,
                              env={**os.environ, **room, "PYTHONIOENCODING": "utf-8"})
        return subprocess.CompletedProcess(done.args, done.returncode,
                                           done.stdout.decode("utf-8"),
                                           done.stderr.decode("utf-8", "replace"))

    def left_behind(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]


class ThePlay(DemoCase):
    def test_ends_by_itself_and_everything_that_it_claims_is_true(self):
        done = self.run_demo()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout[-1500:])
        self.assertNotIn("NOT TRUE", done.stdout)
        one_line = " ".join(done.stdout.split())
        for claim in PLAYED:
            self.assertIn(claim, one_line)

    def test_leaves_nothing_in_the_temporary_folder(self):
        self.run_demo()
        self.assertEqual(self.left_behind(), [])

    def test_prints_plain_lines_that_fit_into_a_pipe(self):
        said = self.run_demo().stdout
        self.assertNotIn("\x1b", said)
        self.assertLessEqual(max(map(len, said.splitlines())), demo.WIDTH)

    def test_says_so_when_a_claim_is_untrue(self):
        class Silent:
            """A house in which nothing is ever answered."""

            def post(self, who, text, room=False):
                return demo.Heard(who, ())

            def terminal(self, line):
                return ""

            def arrivals(self, expected):
                return []

            def requests(self):
                return []

            def album(self):
                return []

        with (self.folder / "said").open("w", encoding="utf-8") as out:
            code = demo.play_all(Silent(), demo.Screen(out), "nobody is at home")
        self.assertEqual(code, 1)
        self.assertIn("NOT TRUE: ", (self.folder / "said").read_text(encoding="utf-8"))


class Typing(DemoCase):
    def test_answers_nonsense_and_ends_with_the_input(self):
        done = self.run_demo("--interactive", typed=NONSENSE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("Traceback", done.stdout)
        self.assertNotIn("That did not work", done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.assertIn("There is one group here", done.stdout)
        self.assertEqual(self.left_behind(), [])

    def test_survives_bytes_that_are_no_text(self):
        done = self.run_demo("--interactive", typed=b"minh: \xff\xfe\n\xff\nquit\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_prompt_is_shown_at_once_and_approving_it_runs_the_call(self):
        folder = self.folder / "typing"
        folder.mkdir()
        with (self.folder / "said").open("w", encoding="utf-8") as out:
            typing = demo.Typing(folder, demo.Screen(out))
            self.addCleanup(typing.close)
            typing.furnish()
            typing.line("minh: touch photo.txt")
            code = demo.code_in(demo.PROMPT, typing.play.news())
            self.assertEqual(list(folder.glob("*/files/photo.txt")), [])
            typing.line(f"boss: /many approve {code}")
            self.assertIn("photo.txt is there now", typing.play.news())
        self.assertEqual(len(list(folder.glob("*/files/photo.txt"))), 1)

    def test_the_demo_s_terminal_tool_is_no_shell(self):
        toy = demo.ToyTerminal(self.folder / "files")
        for command in ("touch ../out", "touch /tmp/out", "ls; touch out", "touch a b", "rm -rf .",
                        "echo x >> ../out", "echo $(id) >> out", "touch .hidden"):
            with self.subTest(command=command):
                self.assertIn("It did nothing", toy({"command": command}))
        self.assertEqual(list(toy.folder.iterdir()), [])
        self.assertEqual(self.left_behind(), ["files"])


class ThePicture(unittest.TestCase):
    def test_is_well_formed_and_has_a_line_of_text_for_each_line_of_the_screen(self):
        root = ElementTree.fromstring(draw_demo.PICTURE.read_text(encoding="utf-8"))  # noqa: S314
        self.assertGreaterEqual(len(list(root.iter("{http://www.w3.org/2000/svg}text"))), 20)

    def test_is_what_the_demo_shows_now(self):
        shown = draw_demo.picture(draw_demo.first_screen(draw_demo.played()))
        self.assertEqual(draw_demo.PICTURE.read_text(encoding="utf-8"), shown)

    def test_escapes_what_the_screen_says(self):
        drawing = draw_demo.picture(['Eve\'s chat    | Eve:  <script>&"'])
        self.assertIn("&lt;script&gt;&amp;", drawing)
        ElementTree.fromstring(drawing)  # noqa: S314


if __name__ == "__main__":
    unittest.main()
