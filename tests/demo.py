"""A household in two minutes: ``python3 tests/demo.py``. No install, no key, no network.

The plugin's real code and a real SQLite file, on a stand-in host with a scripted model; all of it
in a temporary folder that is gone afterwards. What the demo claims it also checks: a claim that
turns out untrue is printed as such, and the exit code is 1.

    --interactive   type as anyone: minh: run ls
    --host          the same scenes on the real gateway (installs a Hermes once if there is none)
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this file is one that 3.6 can read
    sys.stderr.write("This needs Python 3.11 or newer; this is {}.{}.\n".format(*sys.version_info))
    raise SystemExit(2)

import argparse
import difflib
import importlib
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support import StandInHost, plugin_module

WIDTH = 88  # of a pipe, and the most that is used of a window
NARROW = 72  # a window with fewer columns has no room for a column of labels
LEAST_WIDTH = 20
LABEL_WIDTH = 14
SPEAKER_WIDTH = 6
TABLE_WIDTH = 34
ROOM = "family"
ROOM_ID = "FAMILY"
TERMINAL = "terminal"
PEOPLE = {"Boss": "111", "Minh": "222", "Lan": "333", "Eve": "999"}
ALBUM = "album.txt"
TIDY = f"run echo tidied >> {ALBUM}"
PLACES = {TERMINAL: "the terminal", "Boss": "owner's phone", ROOM: "family group"}
COLOURS = {TERMINAL: "32", "Boss": "33", "Minh": "36", "Lan": "34", "Eve": "31", ROOM: "35"}
SECRET = re.compile(r"\b[3-9A-Y]{5}-[3-9A-Y]{5}\b")
PROMPT = re.compile(r"Approval ([3-9A-Y]{4}):")
SAFE = "the safe is behind the painting"
RULER = "═" * 46
SYSTEM = f"""You are the family's bot.

{RULER}
MEMORY (your personal notes) [4% — 88/2,200 chars]
{RULER}
CANARY-MEMORY {SAFE}

Active Hermes profile: default. Other profiles live elsewhere.

Conversation started: today"""


# -- the scripted model and the demo's own terminal tool -----------------------------------------

AS_TOLD = "as the request says"  # the stand-in model decides when it has seen its request
_AGAIN = re.compile(r"approved the earlier call of (\w+)\..*?with exactly these arguments: ", re.S)
_TOOLS = (
    (re.compile(r"run (.+)", re.I | re.S), "terminal", "command"),
    (re.compile(r"(touch .+)", re.I | re.S), "terminal", "command"),
    (re.compile(r"remember (?:that )?(.+)", re.I | re.S), "manyhands_remember", "text"),
    (re.compile(r"recall (.+)", re.I | re.S), "manyhands_recall", "query"),
)

ToolCall = tuple[str, dict[str, Any]]


def call_for(text: str) -> ToolCall | None:
    """The tool call that the scripted model makes for a message; None: it just answers."""
    for pattern, tool, argument in _TOOLS:
        match = pattern.fullmatch(text.strip())
        if match:
            return tool, {argument: match.group(1).strip()}
    return None


def call_made_again(text: str) -> ToolCall | None:
    """The approved call that the plugin's words in a request ask the model to make again."""
    match = _AGAIN.search(text)
    if match is None:
        return None
    args, _ = json.JSONDecoder().raw_decode(text, match.end())
    return match.group(1), args


def in_words(result: str) -> str:
    """A tool's result as the scripted model passes it on."""
    try:
        found = json.loads(result)
    except ValueError:
        return result
    if not isinstance(found, dict):
        return result
    if isinstance(found.get("error"), str) and found["error"]:
        return str(found["error"])
    if "output" in found:
        return f"It ran. {found['output']}".strip()
    if isinstance(found.get("facts"), list):
        kept = [str(fact.get("text", fact)) for fact in found["facts"] if isinstance(fact, dict)]
        return "I found: " + "; ".join(kept) if kept else "I found nothing."
    if "stored" in found:
        return f"Kept as note {found.get('number', '')}.".replace(" .", ".")
    return str(found.get("message") or ", ".join(f"{k}: {v}" for k, v in found.items()))


class ToyTerminal:
    """The stand-in for the host's terminal tool: three commands, one folder, never a shell."""

    NAME = r"([A-Za-z0-9][A-Za-z0-9._-]{0,39})"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __call__(self, args: dict[str, Any], **_host: object) -> str:
        command = str(args.get("command", "")).strip()
        return json.dumps({"output": self._run(command), "exit_code": 0})

    def _run(self, command: str) -> str:
        touched = re.fullmatch("touch " + self.NAME, command)
        echoed = re.fullmatch(r"echo ([\w ]{1,80}?) ?>> ?" + self.NAME, command)
        if command == "ls":
            return "Files: " + (", ".join(sorted(p.name for p in self.folder.iterdir())) or "none")
        if touched:
            (self.folder / touched.group(1)).touch()
            return f"{touched.group(1)} is there now."
        if echoed:
            with (self.folder / echoed.group(2)).open("a", encoding="utf-8") as file:
                file.write(echoed.group(1) + "\n")
            return f"One line was added to {echoed.group(2)}."
        return ("But this is the demo's toy terminal, which knows only: ls, touch NAME, "
                "echo WORDS >> NAME. It did nothing.")


# -- the house: on the stand-in host, or on the real gateway -------------------------------------


@dataclass(frozen=True, slots=True)
class Heard:
    """What one chat received, and how many model calls that took."""

    chat: str
    texts: tuple[str, ...]
    model_calls: int = 0


class House(Protocol):
    """What the scenes need of a host."""

    def post(self, who: str, text: str, room: bool = False) -> Heard:
        """Somebody types a message; the answer in that chat."""

    def terminal(self, line: str) -> str:
        """`/many ...` typed on the bot's own machine."""

    def arrivals(self, expected: int) -> list[Heard]:
        """What reached chats by itself since the last look; the real host is waited for."""

    def requests(self) -> list[dict[str, Any]]:
        """Every request that a turn has sent to the model."""

    def album(self) -> list[str]:
        """The lines of the file that the terminal tool writes to: one a run."""


class DemoHost(StandInHost):
    """The stand-in host with a model that also does what a request tells it to."""

    def tool_call(self, name: str, args: dict[str, Any], **ids: Any) -> str:
        if name != AS_TOLD:
            return super().tool_call(name, args, **ids)
        words = [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "user"]
        call = call_made_again(str(words[-1]))
        return "" if call is None else super().tool_call(*call, **ids)


class StandInHouse:
    """The plugin on the stand-in host, in a folder of the demo's own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._settings = {"db_path": str(folder / "manyhands.db")}
        self._host = DemoHost(self._settings)
        self._host.system = SYSTEM
        self._toy = ToyTerminal(folder / "files")
        self._host.register_tool(name="terminal", handler=self._toy)
        self.people = dict(PEOPLE)

    def close(self) -> None:
        self._host.unload()

    def post(self, who: str, text: str, room: bool = False) -> Heard:
        user, chat, place = self.people[who], f"group:{ROOM_ID}" if room else "dm", \
            ROOM if room else who
        if text.startswith("/"):
            return Heard(place, (self._command(user, who, text, chat),))
        call = call_for(text)
        seen = self._host.say(user, text, name=who, chat=chat, tools=[call] if call else None)
        return Heard(place, self._said(seen, text), seen.model_calls)

    def _command(self, user: str, who: str, text: str, chat: str) -> str:
        gate = self._host.dispatch(user, text, name=who, chat=chat)
        if gate is not None:
            text = gate.get("text", "")
        word, _, rest = text.partition(" ")
        if word.lower() == "/many":
            return self._host.command(user, rest, name=who, chat=chat)
        return "(That is a command of the host's own; this stand-in host has none.)" if text else ""

    @staticmethod
    def _said(seen: SimpleNamespace, text: str) -> tuple[str, ...]:
        """The answer as the scripted model gives it: a tool's result, or the message again."""
        reply = str(seen.reply or "")
        if reply.startswith("ECHO: "):
            reply = in_words(seen.results[-1]) if seen.results else f"You said: {text}"
        return (reply,) if reply else ()

    def terminal(self, line: str) -> str:
        """In a host process of its own, as `hermes chat` is one beside the gateway."""
        host = StandInHost(self._settings)
        try:
            return host.terminal_command(line)
        finally:
            host.unload()

    def arrivals(self, expected: int) -> list[Heard]:
        found: list[Heard] = []
        names = {user: name for name, user in self.people.items()}
        while self._host.injected and len(found) < 50:
            notice = self._host.injected.pop(0)
            origin, text = notice["origin"], notice["content"]
            room = origin["chat_type"] != "dm"
            seen = self._host.say(
                origin["user_id"], text, name=names[origin["user_id"]], door=False,
                chat=f"group:{origin['chat_id']}" if room else "dm", tools=[(AS_TOLD, {})])
            found.append(Heard(ROOM if room else names[origin["user_id"]],
                               self._said(seen, text), seen.model_calls))
        return found

    def requests(self) -> list[dict[str, Any]]:
        return self._host.requests

    def album(self) -> list[str]:
        return _lines(self._toy.folder / ALBUM)


class GatewayHouse:
    """The plugin on the real gateway, in a throwaway home, with a scripted model on loopback."""

    def __init__(self, lab: Any) -> None:
        self._lab = lab
        self._read = 0
        self._counted = 0
        self._waiting: list[Heard] = []

    def post(self, who: str, text: str, room: bool = False) -> Heard:
        """A command costs no model call itself: those of the turn it caused are its arrivals'."""
        place = ROOM if room else who
        self._collect()
        self._lab.say(PEOPLE[who], text, who, f"group:{ROOM_ID}" if room else "dm")
        mine = [heard for heard in self._new() if heard.chat == place or self._keep(heard)]
        texts = tuple(text for heard in mine for text in heard.texts)
        return Heard(place, texts, 0 if text.startswith("/") else self._new_calls())

    def _new_calls(self) -> int:
        """How many model calls were made since this was last asked."""
        before, self._counted = self._counted, len(self.requests())
        return self._counted - before

    def _keep(self, heard: Heard) -> bool:
        """Put what another chat received aside for `arrivals`; False."""
        self._waiting.append(heard)
        return False

    def _new(self) -> list[Heard]:
        chats = {user: name for name, user in PEOPLE.items()} | {ROOM_ID: ROOM}
        sent = self._lab.outbox[self._read:]
        self._read += len(sent)
        return [Heard(chats[message.chat], (message.text,)) for message in sent]

    def _collect(self) -> None:
        self._waiting.extend(self._new())

    def terminal(self, line: str) -> str:
        from live.house import CLAIM
        command = CLAIM.replace('("claim")', f"({line!r})")
        return str(self._lab.home.run(sys.executable, "-c", command).stdout).strip()

    def arrivals(self, expected: int) -> list[Heard]:
        from gateway_lab import wait_until

        def all_there() -> bool:
            self._collect()
            return len(self._waiting) >= expected

        if expected:
            wait_until(all_there, 30)
            self._lab.wait_idle()
            self._collect()
        found, self._waiting = self._waiting, []
        if found:
            found[-1] = Heard(found[-1].chat, found[-1].texts, self._new_calls())
        return found

    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._lab.turn_requests
        return found

    def album(self) -> list[str]:
        return _lines(self._lab.home.work / ALBUM)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


# -- the screen ----------------------------------------------------------------------------------


class Screen:
    """Prints a conversation, wrapped to the window: a label and a colour for each chat."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._coloured = out.isatty() and not os.environ.get("NO_COLOR")

    @property
    def width(self) -> int:
        """The columns that are used; asked anew each time, as a window may be resized."""
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        return max(LEAST_WIDTH, min(WIDTH, columns))

    def _print(self, text: str, colour: str = "") -> None:
        self._out.write((f"\x1b[{colour}m{text}\x1b[0m" if colour and self._coloured else text)
                        + "\n")
        self._out.flush()

    def heading(self, text: str) -> None:
        self._print("")
        first, *more = wrapped(text, self.width - 4)
        self._print(f"-- {first}" if more else f"-- {first} ".ljust(self.width, "-"), "1")
        for line in more:
            self._print(f"   {line}", "1")

    def prose(self, text: str) -> None:
        for line in wrapped(text, self.width):
            self._print(line)

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Two columns, of which the second is wrapped; in a narrow window one below the other."""
        for left, right in rows:
            if self.width < NARROW:
                for line in wrapped(left, self.width - 2):
                    self._print(f"  {line}")
                lines, indent = wrapped(right, self.width - 6), 6
            else:
                lines, indent = wrapped(right, self.width - TABLE_WIDTH), TABLE_WIDTH
                self._print(f"  {left}".ljust(indent) + next(lines))
            for line in lines:
                self._print(" " * indent + line)

    def said(self, chat: str, speaker: str, text: str) -> None:
        """One message in a chat; what came with control characters is shown without them."""
        colour = COLOURS.get(chat, "31")
        if self.width < NARROW:
            for line in wrapped(f"{label_of(chat)} | {speaker}", self.width):
                self._print(line, colour)
            for line in wrapped(text, self.width - 2):
                self._print(f"  {line}", colour)
            return
        speaker = padded(f"{speaker} ", SPEAKER_WIDTH)
        width = self.width - LABEL_WIDTH - 2 - cells(speaker)
        for number, line in enumerate(wrapped(text, width)):
            label, name = (label_of(chat), speaker) if number == 0 else ("", "")
            self._print(f"{padded(label, LABEL_WIDTH)}| {padded(name, cells(speaker))}{line}",
                        colour)

    def aside(self, text: str, colour: str = "2") -> None:
        indent = 2 if self.width < NARROW else LABEL_WIDTH
        for number, line in enumerate(wrapped(text, self.width - indent - 4)):
            self._print(f"{'':<{indent}}{'= ' if number == 0 else '  '}{line}", colour)


def label_of(chat: str) -> str:
    """What a chat is called on the screen; a long name is cut to the column of labels."""
    label = PLACES.get(chat, f"{chat}'s chat")
    while cells(label) >= LABEL_WIDTH:
        chat = chat[:-1]
        label = f"{chat}\N{HORIZONTAL ELLIPSIS}'s chat"
    return label


def cells(text: str) -> int:
    """How many columns a text takes: marks stand on their letters, some letters take two."""
    return sum(1 + is_wide(c) for c in text if unicodedata.category(c) not in ("Mn", "Me"))


def is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in ("W", "F")


def padded(text: str, width: int) -> str:
    """The text, filled up with spaces; a longer one as it is."""
    return text + " " * (width - cells(text))


def wrapped(text: str, width: int) -> Iterator[str]:
    """The lines of a text, each one wrapped; its own line breaks and indents are kept."""
    for line in text.splitlines() or [""]:
        clean = "".join(c if c.isprintable() else "?" for c in line.expandtabs(4)).rstrip()
        indent = " " * (len(clean) - len(clean.lstrip())) if len(clean) < 2 * width else ""
        spread = "".join(c + "\0" * is_wide(c) for c in clean)  # so that it counts for two
        for part in textwrap.wrap(spread, width - (spread != clean), break_on_hyphens=False,
                                  subsequent_indent=indent[:width // 2]) or [""]:
            yield part.replace("\0", "")


# -- the play ------------------------------------------------------------------------------------


class Play:
    """Lets people write, prints what came of it, and remembers what was claimed."""

    def __init__(self, house: House, screen: Screen) -> None:
        self.house = house
        self.screen = screen
        self.untrue: list[str] = []
        self.claimed = 0
        self.prompts = 0
        self.last_arrivals: list[Heard] = []

    def says(self, who: str, text: str, room: bool = False, arrive: int = 0) -> str:
        """One message and what followed; `arrive` messages are expected in other chats."""
        self.screen.said(ROOM if room else who, f"{who}:", text)
        heard = self.house.post(who, text, room)
        self._show(heard)
        self.arrived(arrive)
        return "\n".join(heard.texts)

    def at_terminal(self, line: str, left_out: str = "") -> str:
        """`/many ...` on the bot's own machine; `left_out` says what its long middle is about."""
        self.screen.said(TERMINAL, "$", f"/many {line}")
        said = self.house.terminal(line)
        self.screen.said(TERMINAL, "bot:", folded(said, left_out) if left_out else said)
        return said

    def arrived(self, expected: int) -> str:
        """Show what reached chats by itself."""
        self.last_arrivals = self.house.arrivals(expected)
        for heard in self.last_arrivals:
            self.prompts += sum(bool(PROMPT.search(text)) for text in heard.texts)
            self._show(heard)
        return self.news()

    def news(self) -> str:
        """What reached chats by itself after the last message."""
        return "\n".join(text for heard in self.last_arrivals for text in heard.texts)

    def _show(self, heard: Heard) -> None:
        for text in heard.texts:
            self.screen.said(heard.chat, "bot:", text)
        if not heard.texts:
            self.screen.aside("no answer: the bot stays silent")
        elif heard.model_calls:
            calls = heard.model_calls
            self.screen.aside(f"{calls} model call{'s' if calls > 1 else ''}")

    def claims(self, sentence: str, holds: object) -> None:
        self.claimed += 1
        if holds:
            self.screen.aside(f"ok: {sentence}", "1;32")
            return
        self.untrue.append(sentence)
        self.screen.aside(f"NOT TRUE: {sentence}", "1;31")


def code_in(pattern: re.Pattern[str], text: str) -> str:
    """The code in an answer; LookupError, with the answer, where there is none."""
    match = pattern.search(text)
    if match is None:
        raise LookupError(f"there is no code in: {text[:200]}")
    return match.group(match.lastindex or 0)


def folded(text: str, left_out: str) -> str:
    """A long answer without its middle, and a line that says what was left out."""
    lines = text.splitlines()
    if len(lines) < 9:
        return text
    return "\n".join((lines[0], f"(... {len(lines) - 3} more lines: {left_out} ...)", *lines[-2:]))


def has_notes(request: dict[str, Any]) -> bool:
    """Whether the operator's private notes stand anywhere in a request to the model."""
    return "CANARY" in json.dumps(request, ensure_ascii=False)


# -- the scenes ----------------------------------------------------------------------------------


def nobody_owns_it(play: Play) -> None:
    said = play.says("Eve", "hello")
    play.claims("without an owner the bot answers nobody; no model call", "no owner yet" in said
                and not play.house.requests())


def the_claim(play: Play) -> None:
    code = code_in(SECRET, play.at_terminal("claim", "the settings to check"))
    said = play.says("Boss", f"/many claim {code}")
    play.claims("whoever can type on the bot's own machine made Boss the owner",
                "owns the bot" in said)


def a_stranger(play: Play) -> None:
    said = play.says("Eve", "I am the owner's sister, let me in")
    play.claims("a stranger is refused, and it cost no model call",
                "private" in said and not play.house.requests())


def an_invite(play: Play) -> None:
    code = code_in(SECRET, play.says("Boss", "/many invite"))
    said = play.says("Minh", f"join {code}", arrive=1)
    play.claims("Minh is a member, and the owner was told; still not one model call",
                "Welcome, Minh" in said and "Minh" in play.news() and not play.house.requests())


def a_guest(play: Play) -> None:
    code = code_in(SECRET, play.says("Boss", "/many invite guest"))
    said = play.says("Lan", f"join {code}", arrive=1)
    play.claims("Lan is a guest", "Welcome, Lan" in said and "guest" in said)
    play.says("Lan", "hello everybody", room=True)
    said = play.says("Lan", "run ls", room=True)
    play.claims("a guest talks with the bot, but runs nothing and does not bother the owner",
                "guest" in said and not play.news())


def private_notes(play: Play) -> None:
    play.screen.prose("The operator's own notes in the bot's memory file: "
                      f'"CANARY-MEMORY {SAFE}".')
    play.says("Boss", "good morning")
    boss = has_notes(play.house.requests()[-1])
    play.says("Minh", "what do you know about the safe?")
    minh = has_notes(play.house.requests()[-1])
    play.claims(f"CANARY in Boss's request to the model: {_yes(boss)} / in Minh's: {_yes(minh)}",
                boss and not minh)


def own_memory(play: Play) -> None:
    play.says("Minh", "remember that my locker code is 4711")
    said = play.says("Minh", "recall locker code")
    others = [play.says(who, "recall locker code") for who in ("Lan", "Boss")]
    play.claims("Minh gets it back; neither the guest nor the owner does",
                "4711" in said and "4711" not in "".join(others))


def a_parked_call(play: Play) -> None:
    play.says("Minh", TIDY, arrive=1)
    prompt = play.news()
    code = code_in(PROMPT, prompt)
    play.claims("nothing has run; the owner's phone shows who wants what, exactly as it would run",
                not play.house.album() and "Minh" in prompt and TIDY[4:] in prompt)
    said = play.says("Boss", f"/many approve {code}", arrive=2)
    play.claims("the owner approved, the call was made again by itself and ran once",
                "Approved" in said and len(play.house.album()) == 1)


def the_same_again(play: Play) -> None:
    play.says("Minh", TIDY, arrive=1)
    code = code_in(PROMPT, play.news())
    play.claims("what was approved was one run: the same call asks again",
                len(play.house.album()) == 1)
    said = play.says("Minh", f"/many approve {code}", arrive=1)
    play.claims("Minh saw the code and tried: refused, and the owner was alarmed",
                "Approved" not in said and "tried" in play.news() and len(play.house.album()) == 1)


def lockdown(play: Play) -> None:
    play.says("Boss", "/many lockdown")
    said = play.says("Minh", "recall locker code")
    play.claims("in a lockdown nobody but the owner runs any tool", "4711" not in said)
    said = play.says("Boss", "run ls")
    play.claims("the owner still does", "refused" not in said.lower())
    play.says("Boss", "/many resume")
    said = play.says("Minh", "recall locker code")
    play.claims("afterwards it is as before", "4711" in said)


def the_audit(play: Play) -> None:
    said = play.says("Boss", "/many audit all")
    play.claims("every turn, refusal, ask and approval is a row of the audit",
                "Minh" in said and "approv" in said)
    said = play.says("Boss", "/many verify")
    play.claims("and no row was changed or taken out since", "is whole" in said)


SCENES: tuple[tuple[str, Callable[[Play], None]], ...] = (
    ("Nobody owns the bot yet", nobody_owns_it),
    ("Its operator claims it, at the bot's own terminal", the_claim),
    ("A stranger", a_stranger),
    ("An invitation", an_invite),
    ("Minh's agent wants to run something", a_parked_call),
    ("A guest, in the family group", a_guest),
    ("The operator's private notes", private_notes),
    ("Everybody has a memory of their own", own_memory),
    ("Minh wants the same once more", the_same_again),
    ("Lockdown", lockdown),
    ("What is on record", the_audit),
)


def _yes(found: bool) -> str:
    return "yes" if found else "no"


def play_all(house: House, screen: Screen, stage: str) -> int:
    """All scenes in order; 0 when everything that they claim is true."""
    play = Play(house, screen)
    screen.prose("manyhands: one bot, many people. Boss owns the bot, Minh and Lan live with Boss, "
                 f"Eve does not.\n{stage}")
    for number, (title, scene) in enumerate(SCENES, 1):
        screen.heading(f"{number}. {title}")
        try:
            scene(play)
        except (LookupError, TimeoutError) as error:
            play.claims(f"this scene can be played to its end ({error})", False)
    screen.heading("In short")
    screen.prose(f"{len(house.requests())} model calls, {play.prompts} prompts on the owner's "
                 f"phone, {len(house.album())} run of Minh's command.\n"
                 f"{play.claimed - len(play.untrue)} of {play.claimed} claims are true.")
    for sentence in play.untrue:
        screen.prose(f"NOT TRUE: {sentence}")
    return 1 if play.untrue else 0


# -- typing as anyone ----------------------------------------------------------------------------

HELP = ("The model here is a script: it repeats what a tool answered, or your own words. It runs a "
        "tool for run, touch, remember and recall, as they stand here, and for nothing else.\n"
        "Type who writes, a colon, and what they write:")
EXAMPLES = (
    ("minh: hello", "in Minh's own chat with the bot"),
    ("minh@family: hello", "in the family group"),
    ("minh: run ls", "the terminal tool, in the demo's folder; also: run touch NAME, "
                     "run echo WORDS >> NAME"),
    ("minh: touch notes.txt", "short for: run touch notes.txt"),
    ("minh: remember that I like tea", "Minh's own notes"),
    ("minh: recall tea", "what is found in them"),
    ("boss: /many help", "/many is what people type to the plugin itself"),
    ("boss: /many approve CODE", "the code stands in the prompt on the owner's phone"),
    ("terminal: /many claim", "on the bot's own machine"),
)
MORE_HELP = ("Any other name is a stranger. "
             "Also: help, fresh (begin with nobody and no owner), quit.")
HELP_WORDS = frozenset({"help", "?", "h", "/help", "/h", "/?", ":h", ":help", "--help"})
QUIT_WORDS = frozenset({"quit", "exit", "q", "bye", ":q", ":q!", ":quit", "/q", "/quit", "/exit"})
A_NAME = "a name is one word of letters, at most 20"
_LINE = re.compile(r"\s*([^:\N{FULLWIDTH COLON}]*?)\s*[:\N{FULLWIDTH COLON}]\s*(.*)", re.S)
FURNISHED = "Boss owns the bot, Minh is a member, Lan a guest; Eve is a stranger."


class Typing:
    """A newcomer at the keyboard; every line is answered, and none ends in a traceback."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self._folder = folder
        self._screen = screen
        self._houses = 0
        self._open()

    def _open(self) -> None:
        self._houses += 1
        self._doubted: set[str] = set()
        self.house = StandInHouse(self._folder / f"house{self._houses}")
        self.play = Play(self.house, self._screen)

    def close(self) -> None:
        self.house.close()

    def furnish(self) -> None:
        """The household as it is once the first scenes have been played."""
        house = self.house
        house.post("Boss", f"/many claim {code_in(SECRET, house.terminal('claim'))}")
        house.post("Boss", f"/many add telegram {PEOPLE['Minh']} member Minh")
        house.post("Boss", f"/many add telegram {PEOPLE['Lan']} guest Lan")
        house.arrivals(0)

    def help(self) -> None:
        self._screen.prose(HELP)
        self._screen.table(EXAMPLES)
        self._screen.prose(MORE_HELP)

    def line(self, text: str) -> bool:
        """Answer one line; False when it says that this is the end."""
        word = text.strip().lower()
        if word in QUIT_WORDS:
            return False
        if word in HELP_WORDS:
            self.help()
        elif word in ("fresh", "/fresh"):
            self.close()
            self._open()
            self._screen.prose("A new house: no owner, nobody on the roster. "
                               "Start with: terminal: /many claim")
        elif word:
            self._message(text.strip())
        return True

    def _message(self, text: str) -> None:
        match = _LINE.fullmatch(text)
        if text.startswith("/") or match is None or not all(match.groups()):
            self._screen.prose(for_nobody(text))
            return
        address, said = match.groups()
        name, at, room = (part.strip() for part in address.partition("@"))
        if not is_name(name) or said.startswith("//"):
            self._screen.prose(f"Who writes that? {A_NAME.capitalize()}. For example: minh: hello")
        elif name.casefold() == TERMINAL:
            self._terminal(said)
        elif at and room.casefold() != ROOM:
            self._screen.prose(f"There is one group here: {name.lower()}@{ROOM}: hello")
        else:
            self._says(name, said, bool(at))

    def _says(self, name: str, said: str, room: bool) -> None:
        who = self._meet(name)
        if who:
            reply = self.play.says(who, said, room)
            address = who.lower() + (f"@{ROOM}" if room else "")
            self._hint(hint_for(said, address, echoed=reply.startswith("You said: ")))

    def _hint(self, hint: str) -> None:
        if hint:
            self._screen.prose(f"({hint})")

    def _meet(self, name: str) -> str:
        """Who that is, as they are called here; empty while it may be a slip of the pen."""
        name = unicodedata.normalize("NFC", name)
        known = {there.casefold(): there for there in self.house.people}
        word = name.casefold()
        if word in known:
            return known[word]
        near = difflib.get_close_matches(word, (*known, TERMINAL), 1, 0.66)
        if near and word not in self._doubted:
            self._doubted.add(word)
            self._hint(f"did you mean {near[0]}? If {name.lower()} is somebody new, type it again")
            return ""
        who = name.capitalize()
        self.house.people[who] = str(1000 + len(self.house.people))
        self._hint(f"{who} is somebody new, whom the bot has never seen.")
        return who

    def _terminal(self, said: str) -> None:
        word, _, rest = said.partition(" ")
        if word.lower() != "/many":
            self._screen.prose("At the terminal the demo knows /many only: terminal: /many help")
            self._hint(hint_for(said, TERMINAL, echoed=False))
            return
        self.play.at_terminal(rest)
        self.play.arrived(0)


def is_name(word: str) -> bool:
    """Whether it is one word of letters of any script; a mark belongs to its letter."""
    kinds = [unicodedata.category(c)[0] for c in word]
    return kinds[:1] == ["L"] and set(kinds) <= {"L", "M"} and \
        kinds.count("L") <= 20 and len(kinds) <= 40


def for_nobody(text: str) -> str:
    """What to say to a line that does not say who writes it."""
    command = meant_command(text) or (text if text.startswith("/") else "")
    if command:
        return f"Put somebody in front, as in boss: {command}"
    if call_for(text):
        return f"Put somebody in front, as in minh: {text}"
    return f"Who writes what? For example: minh: hello   ({A_NAME}; or: help, quit)"


# -- what a message to the script may have meant -------------------------------------------------

_POLITE = re.compile(r"(?:(?:please|pls|hey|hi|bot|can|could|would|will|you|now|just)\b[\s,]*)*",
                     re.I)
_TRY = re.compile(r"(run|touch|remember|recall|ls|echo|cat|pwd|rm|mkdir)\b.*", re.I | re.S)
_COMMAND = re.compile(r"(/?)\s*many(\s*)(\w*)(.*)", re.I | re.S)
_ANSWERS = (
    (re.compile(r"(?:y|yes|ok|okay|sure|approved?(?: \S+)?)[.!]*", re.I), "approve CODE approves"),
    (re.compile(r"den(?:y|ied)(?: \S+)?[.!]*", re.I), "deny CODE refuses"),
)


def hint_for(said: str, address: str, echoed: bool) -> str:
    """What somebody may have meant with words that are none of the script's; mostly empty."""
    for pattern, what in _ANSWERS:
        if pattern.fullmatch(said):
            return f"only /many {what}"
    tried, command = meant_tool(said) if echoed else "", meant_command(said)
    if tried:
        return f"the script runs a tool for: {address}: {tried}"
    return f"did you mean {command}?" if command else ""


def meant_command(said: str) -> str:
    """The /many command that `/manyusage` or `many usage` comes next to; empty: none."""
    match = _COMMAND.fullmatch(said)
    if match is None or (match.group(1) and match.group(2)):
        return ""
    verb, rest = match.group(3).lower(), match.group(4).rstrip(" .!?")
    if not verb and not rest:
        return "" if match.group(1) else "/many help"
    return f"/many {verb}{rest}" if verb in plugin_module("policy").VERBS else ""


def meant_tool(said: str) -> str:
    """The words for which the script runs a tool that come next to a message; empty: none do."""
    polite = _POLITE.match(said)
    bare = said[polite.end() if polite else 0:].rstrip(" .!?")
    tried = _TRY.fullmatch(bare)
    if tried is None:
        return ""
    if call_for(bare):
        return bare
    word = tried.group(1).lower()
    if word == "echo" and ">>" in bare:
        return f"run {bare}"
    return {"touch": "touch notes.txt", "remember": "remember that I like tea",
            "recall": "recall tea", "echo": "run echo hello >> notes.txt"}.get(word, "run ls")


# -- the conversation ----------------------------------------------------------------------------


def interactive(screen: Screen) -> int:
    """Lines from the keyboard, in a folder of its own; the exit code, 130 for an interrupt."""
    code = 0
    with tempfile.TemporaryDirectory(prefix="manyhands-demo-") as tmp:
        try:
            converse(keyboard(), Path(tmp), screen)
        except KeyboardInterrupt:
            code = 130
    with suppress(OSError):  # a window that was closed hears no goodbye
        screen.prose("Bye. The demo's folder is gone.")
    return code


def converse(lines: Iterable[str], folder: Path, screen: Screen) -> None:
    typing = Typing(folder, screen)
    try:
        typing.furnish()
        screen.prose(FURNISHED)
        typing.help()
        for text in lines:
            try:
                if not typing.line(text):
                    break
            except Exception as error:
                screen.prose(f"That did not work ({type(error).__name__}). Try something else.")
    finally:
        typing.close()


def keyboard() -> Iterator[str]:
    """Lines as they are typed, edited where that is possible; ends at the end of input."""
    if sys.stdin is None:
        return
    typed = sys.stdin.isatty()
    if typed and sys.stdout.isatty():
        with suppress(ImportError):
            importlib.import_module("readline")  # from here on `input` has its editing and history
    while True:
        try:
            yield input("> " if typed else "")
        except UnicodeDecodeError:
            yield "(unreadable)"
        except (EOFError, KeyboardInterrupt) as end:
            if typed:
                with suppress(OSError):
                    print()  # the prompt stands on a line that nobody has ended
            if isinstance(end, KeyboardInterrupt):
                raise
            return


# -- the real host -------------------------------------------------------------------------------


def on_real_host(argv: Sequence[str]) -> int:
    """Play on the real gateway: here if this Python has a Hermes, else in one that has."""
    import live_integration
    try:
        python = live_integration.host_python()
    except live_integration.NoHost as error:
        print(f"There is no Hermes to play on: {error}")
        return 1
    if python == Path(sys.executable):
        return play_on_gateway()
    environment = {**os.environ, live_integration.REEXECUTED: "1"}
    with tempfile.TemporaryDirectory(prefix="manyhands-demo-", ignore_cleanup_errors=True) as tmp:
        return subprocess.run((str(python), __file__, *argv), check=False,
                              env={**environment, "TMPDIR": tmp}).returncode


def play_on_gateway() -> int:
    from fake_model import FakeModel
    from live.house import house
    screen = Screen(sys.stdout)
    with house(claimed=False, model=FakeModel(brain)) as made:
        return play_all(GatewayHouse(made.lab), screen, "The real gateway in a throwaway home, "
                        "with a scripted model on this machine: no key, no network.")


def brain(request: dict[str, Any]) -> Any:
    """The scripted model as a server: a call, its result in words, or the message again."""
    from fake_model import Answer, Call, text_of
    messages = request.get("messages") or []
    last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    results = [text_of(m.get("content")) for m in messages[last + 1:] if m.get("role") == "tool"]
    text = text_of(messages[last].get("content")) if last >= 0 else ""
    own = text.partition("\n\n")[0]
    if not request.get("tools"):
        return Answer('{"title": "Demo"}')
    if results:
        return Answer(in_words(results[-1]))
    call = call_made_again(text) or call_for(own)
    return Answer("", (Call("call", *call),)) if call else Answer(f"You said: {own}")


# -- main ----------------------------------------------------------------------------------------


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Keep the plugin's log out of the conversation: refusals are logged as well as answered."""
    handler = logging.NullHandler()
    logging.getLogger("manyhands").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("manyhands").removeHandler(handler)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="A household in two minutes.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--interactive", action="store_true", help="type as anyone")
    how.add_argument("--host", action="store_true", help="play on the real gateway")
    chosen = parser.parse_args(argv)
    if chosen.host:
        return on_real_host(argv)
    screen = Screen(sys.stdout)
    if chosen.interactive:
        with quiet_logs():
            return interactive(screen)
    with quiet_logs(), tempfile.TemporaryDirectory(prefix="manyhands-demo-") as tmp:
        house = StandInHouse(Path(tmp) / "house")
        try:
            return play_all(house, screen, "The plugin's real code and a real SQLite file, on a "
                            "stand-in host; the model is a script: no key, no network.")
        finally:
            house.close()


if __name__ == "__main__":
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # one that was closed beforehand is None
            stream.reconfigure(errors="replace")
    for name in ("SIGTERM", "SIGHUP"):  # a closed window, too, leaves no folder behind
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    if "--host" in sys.argv:
        os._exit(code)  # whatever threads the real host has left here
    raise SystemExit(code)
