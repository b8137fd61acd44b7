"""Draw scenes of the demo: ``python3 tests/draw_demo.py`` writes ``tests/demo.svg``.

The text is the demo's own output in a pipe; its codes, which are drawn anew at every run, are
replaced by fixed ones, so that the same demo gives the same picture.

    --check     write nothing; exit 1 when the picture is not what would be written
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parent))

import demo

TESTS = Path(__file__).resolve().parent
PICTURE = TESTS / "demo.svg"
SCENES = (demo.a_stranger, demo.an_invite, demo.a_parked_call)
ALT = ("Scenes of the demo: a stranger is refused, Minh joins with an invite, Minh's command "
       "waits, the owner is asked in their own chat and approves, and the command runs once")
FIXED_SECRETS = ("K7QDM-9RT3X", "R4HVC-W3MKT", "T9XEP-M4DGA")
FIXED_CODES = ("4HQD", "7RKM", "9WXE")
WIDTH, MARGIN, BAR = 800, 28, 44
FONT_SIZE, LETTER, LEADING = 14, 8.4, 19
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SPACE = "\N{NO-BREAK SPACE}"  # a run of plain ones would be drawn as one
PLAIN, DIM, BRIGHT, TRUE, UNTRUE = "#c9d1d9", "#8b949e", "#ffffff", "#7ee787", "#ff7b72"
COLOURS = {"31": "#ff9492", "32": "#a5d6a7", "33": "#f2cc60", "34": "#79c0ff", "35": "#d2a8ff",
           "36": "#76e3ea"}


class DemoFailed(Exception):
    """The demo did not end well, so there is nothing to draw."""


def played() -> str:
    """What the demo prints into a pipe, however wide the window is."""
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    done = subprocess.run((sys.executable, str(TESTS / "demo.py")), capture_output=True,
                          encoding="utf-8", check=False, timeout=60,
                          env={**environment, "PYTHONIOENCODING": "utf-8"})
    if done.returncode:
        raise DemoFailed(f"the demo ended with {done.returncode}\n{done.stdout[-800:]}"
                         f"{done.stderr[-800:]}")
    return done.stdout


def chosen_scenes(text: str) -> list[str]:
    """The introduction and the chosen scenes, with fixed codes in the order of the drawn ones."""
    parts = re.split(r"^(?=-- )", text, flags=re.M)
    played_scenes = dict(zip((scene for _, scene in demo.SCENES), parts[1:], strict=False))
    screen = "".join((parts[0], *(played_scenes[scene] for scene in SCENES))).rstrip()
    for pattern, fixed_ones in ((demo.SECRET, FIXED_SECRETS), (demo.PROMPT, FIXED_CODES)):
        codes = dict.fromkeys(m.group(pattern.groups) for m in pattern.finditer(screen))
        for code, fixed in zip(codes, fixed_ones, strict=False):
            screen = re.sub(rf"\b{code}\b", fixed, screen)
    return screen.split("\n")


def picture(lines: Sequence[str]) -> str:
    """The lines in a dark window, as SVG."""
    height = BAR + LEADING * len(lines) + MARGIN
    dots = "".join(f'<circle cx="{MARGIN + 20 * n}" cy="22" r="6" fill="{colour}"/>'
                   for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")))
    rows = "\n".join(drawn(lines))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{ALT}">\n'
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#0d1117"/>\n{dots}\n'
            f'<text x="{WIDTH / 2:g}" y="27" text-anchor="middle" font-family="{FONTS}" '
            f'font-size="{FONT_SIZE - 1}" fill="{DIM}">python3 tests/demo.py</text>\n'
            f'<g font-family="{FONTS}" font-size="{FONT_SIZE}">\n'
            f'{rows}\n</g>\n</svg>\n')


def drawn(lines: Sequence[str]) -> Iterator[str]:
    """One text element for each line that is not empty, held to the grid of letters."""
    colour = PLAIN
    for number, line in enumerate(lines):
        text = line.strip()
        if not text:
            continue
        colour = colour_of(line, colour)
        x = MARGIN + LETTER * (len(line) - len(line.lstrip()))
        y = BAR + LEADING * (number + 1) - 5
        words = escape(text).replace(" ", SPACE)
        weight = ' font-weight="bold"' if line.startswith("-- ") else ""
        yield (f'<text x="{x:.1f}" y="{y}" textLength="{LETTER * len(text):.1f}" '
               f'lengthAdjust="spacingAndGlyphs" fill="{colour}"{weight}>{words}</text>')


def colour_of(line: str, before: str) -> str:
    """The colour of a line; one without a label goes on in the colour of the line before."""
    if line.startswith("-- "):
        return BRIGHT
    label, bar, _ = line[:demo.LABEL_WIDTH].strip(), *line[demo.LABEL_WIDTH:].partition("|")[1:]
    if label and bar:
        names = {demo.PLACES.get(chat, f"{chat}'s chat"): code
                 for chat, code in demo.COLOURS.items()}
        return COLOURS.get(names.get(label, "31"), PLAIN)
    aside = line.strip()
    if not bar and aside.startswith("= "):
        marks = {"= ok:": TRUE, "= NOT": UNTRUE}
        return marks.get(aside[:5], DIM)
    return before if line.startswith(" ") else PLAIN


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Draw scenes of the demo.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    chosen = parser.parse_args(argv)
    try:
        wanted = picture(chosen_scenes(played()))
    except DemoFailed as error:
        print(error)
        return 1
    if not chosen.check:
        PICTURE.write_text(wanted, encoding="utf-8", newline="\n")
        return 0
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == wanted:
        return 0
    print("tests/demo.svg is not what the demo shows now; run python3 tests/draw_demo.py")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
