"""The demo as a newcomer meets it: in processes of its own, in a pipe."""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import re
import select
import signal
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

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
    def environment(self, columns: str = "") -> dict[str, str]:
        """With a temporary folder of its own, which must be empty afterwards."""
        room = {name: str(self.folder) for name in ("TMPDIR", "TEMP", "TMP")}
        kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        width = {"COLUMNS": columns} if columns else {}
        return {**kept, **room, **width, "PYTHONIOENCODING": "utf-8"}

    def run_demo(self, *argv: str, typed: str | bytes = "",
                 columns: str = "") -> subprocess.CompletedProcess[str]:
        raw = typed if isinstance(typed, bytes) else typed.encode("utf-8")
        done = subprocess.run((sys.executable, str(TESTS / "demo.py"), *argv), input=raw,
                              capture_output=True, timeout=LIMIT_S, check=False,
                              env=self.environment(columns))
        return subprocess.CompletedProcess(done.args, done.returncode,
                                           done.stdout.decode("utf-8"),
                                           done.stderr.decode("utf-8", "replace"))

    def left_behind(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]


class ThePlay(DemoCase):
    def test_ends_by_itself_in_plain_lines_and_everything_that_it_claims_is_true(self):
        done = self.run_demo()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout[-1500:])
        self.assertNotIn("NOT TRUE", done.stdout)
        one_line = " ".join(done.stdout.split())
        for claim in PLAYED:
            self.assertIn(claim, one_line)
        self.assertIn("more lines: the settings to check ...)", one_line)
        self.assertNotIn("\x1b", done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), demo.WIDTH)
        self.assertIn("\nEve's chat    | Eve:  hello\n", done.stdout)
        self.assertEqual(self.left_behind(), [])

    def test_a_narrow_window_is_never_overrun(self):
        done = self.run_demo(columns="40")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(max(map(len, done.stdout.splitlines())), 40)
        self.assertIn("\nEve's chat | Eve:\n  hello\n", done.stdout)

    def test_an_older_python_is_told_so(self):
        ast.parse((TESTS / "demo.py").read_text(encoding="utf-8"), feature_version=(3, 7))
        program = ("import runpy, sys; sys.version_info = (3, 10, 13, 'final', 0); "
                   f"runpy.run_path({str(TESTS / 'demo.py')!r}, run_name='__main__')")
        done = subprocess.run((sys.executable, "-S", "-c", program), capture_output=True,
                              encoding="utf-8", timeout=LIMIT_S, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (2, "", "This needs Python 3.11 or newer; this is 3.10.\n"))

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
        done = self.run_demo("--interactive", typed=NONSENSE.encode() + b"\nminh: \xff\xfe\n\xff")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("Traceback", done.stdout)
        self.assertNotIn("That did not work", done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.assertIn("There is one group here", done.stdout)
        self.assertTrue(done.stdout.endswith("Bye. The demo's folder is gone.\n"))
        self.assertEqual(self.left_behind(), [])

    def test_on_a_terminal_lines_are_edited_and_kept_and_an_interrupt_says_goodbye(self):
        import pty
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        demo_there = subprocess.Popen(
            (sys.executable, str(TESTS / "demo.py"), "--interactive"), stdin=theirs, stdout=theirs,
            stderr=theirs, env={**self.environment("60"), "TERM": "xterm"}, start_new_session=True)
        os.close(theirs)
        self.addCleanup(demo_there.wait)
        self.addCleanup(demo_there.kill)
        read_until(ours, "\n> ")
        os.write(ours, b"minh: hello\n")
        read_until(ours, "\n> ")
        if importlib.util.find_spec("readline"):
            os.write(ours, b"\x1b[A again\n")
            self.assertIn("You said: hello again", read_until(ours, "\n> "))
        for _ in range(5):  # readline loses one that comes between its prompt and its waiting
            demo_there.send_signal(signal.SIGINT)
            if select.select([ours], [], [], 1)[0]:
                break
        self.assertTrue(read_until(ours, "gone.\r\n").startswith("\r\nBye."))
        self.assertEqual(demo_there.wait(LIMIT_S), 130)
        self.assertEqual(self.left_behind(), [])

    def test_a_python_without_readline_reads_lines_all_the_same(self):
        terminal = mock.Mock(isatty=lambda: True)
        with mock.patch.dict(sys.modules, {"readline": None}), \
                mock.patch.multiple(sys, stdin=terminal, stdout=terminal), \
                mock.patch("builtins.input", side_effect=["minh: hello", EOFError]):
            self.assertEqual(list(demo.keyboard()), ["minh: hello"])

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


def read_until(terminal: int, end: str) -> str:
    """What a terminal shows, up to these last characters."""
    seen, deadline = "", time.monotonic() + LIMIT_S
    while not seen.endswith(end) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536).decode("utf-8", "replace")
    return seen


class Talking(FolderCase):
    """What one line at the keyboard is answered, in a window of a given width."""

    def setUp(self):
        super().setUp()
        self.set_width(demo.WIDTH)
        self.out = io.StringIO()
        self.typing = demo.Typing(self.folder, demo.Screen(self.out))
        self.addCleanup(lambda: self.typing.close())
        self.typing.furnish()

    def set_width(self, columns: int) -> None:
        patch = mock.patch.dict(os.environ, {"COLUMNS": str(columns)})
        patch.start()
        self.addCleanup(patch.stop)

    def answer(self, line: str) -> str:
        self.out.seek(0)
        self.out.truncate()
        self.assertTrue(self.typing.line(line), line)
        return self.out.getvalue()

    def people(self) -> set[str]:
        return set(self.typing.house.people)

    def test_nothing_is_left_out(self):
        helped = self.answer("terminal: /many help")
        self.assertIn("rename    change somebody's name", helped)
        self.answer("fresh")
        claimed = self.answer("terminal: /many claim")
        self.assertIn("allow_gateway_injection", claimed)
        self.assertNotIn("more lines", helped + claimed)

    def test_a_name_is_one_word_of_letters_of_any_script(self):
        for line, name in (("B\xf9i: xin ch\xe0o", "B\xf9i"), ("Bu\u0300i: hello", "B\xf9i"),
                           ("B\xd9I: hello", "B\xf9i"), ("\u738b\u5c0f\u660e\uff1a hello",
                           "\u738b\u5c0f\u660e"), ("\u092e\u0940\u0928\u093e: hello",
                           "\u092e\u0940\u0928\u093e"), ("a" * 20 + ": hello", "A" + "a" * 19)):
            with self.subTest(line=line):
                self.assertIn(f"| {name}: ", self.answer(line))
        self.assertEqual(len(self.people() - set(demo.PEOPLE)), 4)

    def test_says_what_a_name_is(self):
        before = self.people()
        for line in ("Minh Nguyen: hello", "\U0001f600: hello", "http://x: foo", "https://x",
                     "a1: hello", "a" * 21 + ": hello", "just words"):
            with self.subTest(line=line):
                self.assertIn("a name is one word of letters", self.answer(line).lower())
        self.assertEqual(self.people(), before)

    def test_a_name_close_to_one_who_is_there_is_asked_about_once(self):
        before = self.people()
        asked = self.answer("mihn: hello")
        self.assertIn("did you mean minh?", asked)
        self.assertNotIn("|", asked)
        self.assertEqual(self.people(), before)
        self.assertIn("| Mihn: hello", self.answer("Mihn: hello"))
        self.assertNotIn("did you mean", self.answer("mihn: hello"))
        self.assertIn("did you mean terminal?", self.answer("termnal: /many help"))

    def test_says_what_the_model_is_and_which_words_it_knows(self):
        helped = self.answer("help")
        self.assertIn("The model here is a script", helped)
        self.assertEqual(self.answer("/help"), helped)
        for word in ("run", "touch", "remember", "recall"):
            self.assertIn(f"minh: {word} ", helped)

    def test_a_message_that_looks_like_a_try_gets_a_hint_on_a_line_of_its_own(self):
        tool, run = "the script runs a tool for: minh: ", "run ls"
        for line, hint in (
                ("minh: run", tool + run), ("minh: ls", tool + run),
                ("minh: please run ls", tool + run), ("minh: Could you run ls?", tool + run),
                ("minh: remember", tool + "remember that I like tea"),
                ("minh: recall", tool + "recall tea"), ("minh: touch", tool + "touch notes.txt"),
                ("minh: echo hi >> a.txt", tool + "run echo hi >> a.txt"),
                ("minh@family: ls", "the script runs a tool for: minh@family: run ls"),
                ("boss: approve", "only /many approve CODE approves"),
                ("boss: yes", "only /many approve CODE approves"),
                ("boss: deny 4HQD", "only /many deny CODE refuses"),
                ("boss: many usage", "did you mean /many usage?"),
                ("boss: /manyusage", "did you mean /many usage?"),
                ("terminal: many usage", "did you mean /many usage?")):
            with self.subTest(line=line):
                self.assertTrue(self.answer(line).endswith(f"\n({hint})\n"), self.answer(line))
        for line in ("minh: hello", "minh: run ls", "minh: many people came", "boss: /approve",
                     "boss: /many usage", "minh: I run every day", "eve: ls", "minh: /yolo"):
            with self.subTest(line=line):
                self.assertNotIn("\n(", self.answer(line))

    def test_a_line_without_a_name_is_answered(self):
        for line, example in (
                ("/many help", "boss: /many help"), ("many usage", "boss: /many usage"),
                ("/approve", "boss: /approve"), ("run ls", "minh: run ls")):
            self.assertEqual(self.answer(line), f"Put somebody in front, as in {example}\n")
        for line in ("q", ":q", "/quit", "QUIT", "exit"):
            self.assertFalse(self.typing.line(line), line)

    def test_there_is_room_after_a_long_name(self):
        self.assertIn("| Nobody: hi\n", self.answer("Nobody: hi"))

    def test_nothing_is_wider_than_the_window(self):
        for columns in (20, 40, 71, 72, 80, 200):
            self.set_width(columns)
            said = "".join(map(self.answer, (
                "help", "minh: " + "long words " * 12 + "x" * 90, "minh: " + "\u5b57" * 90,
                "\u738b" * 20 + ": hello", "boss: /many verify", "terminal: /many help")))
            widest = max(map(demo.cells, said.splitlines()))
            self.assertLessEqual(widest, min(columns, demo.WIDTH), said)
            self.assertEqual("              | " in said, columns >= demo.NARROW)

    def test_a_long_heading_is_wrapped(self):
        self.set_width(40)
        demo.Screen(self.out).heading("2. " + "word " * 12)
        self.assertLessEqual(max(map(len, self.out.getvalue().splitlines())), 40)


class ThePicture(unittest.TestCase):
    def test_is_what_the_demo_shows_now(self):
        shown = draw_demo.picture(draw_demo.chosen_scenes(draw_demo.played()))
        self.assertEqual(draw_demo.PICTURE.read_text(encoding="utf-8"), shown)

    def test_shows_the_story_up_to_the_approved_run_on_one_page(self):
        root = ElementTree.fromstring(draw_demo.PICTURE.read_text(encoding="utf-8"))  # noqa: S314
        drawn = "\n".join(root.itertext()).replace(draw_demo.SPACE, " ")
        story = ("private", "/many invite", "Minh: join", "Not run", "owner's phone | bot:  "
                 "[manyhands] Approval 4HQD", "Boss: /many approve 4HQD", "It ran.", "ran once")
        places = [drawn.find(words) for words in story]
        self.assertNotIn(-1, places)
        self.assertEqual(places, sorted(places))
        self.assertEqual(set(re.findall(r"approve (\w{4})\b", drawn)), {"4HQD"})
        self.assertLessEqual(int(root.get("height", "0")), 1100)
        self.assertGreaterEqual(draw_demo.FONT_SIZE / draw_demo.WIDTH, 14 / 800)

    def test_is_the_same_in_a_narrow_window(self):
        with mock.patch.dict(os.environ, {"COLUMNS": "40"}), \
                mock.patch.object(subprocess, "run") as run:
            run.return_value = mock.Mock(returncode=0, stdout="")
            draw_demo.played()
        self.assertNotIn("COLUMNS", run.call_args.kwargs["env"])

    def test_escapes_what_the_screen_says(self):
        drawing = draw_demo.picture(['Eve\'s chat    | Eve:  <script>&"'])
        self.assertIn("&lt;script&gt;&amp;", drawing)
        ElementTree.fromstring(drawing)  # noqa: S314


if __name__ == "__main__":
    unittest.main()
