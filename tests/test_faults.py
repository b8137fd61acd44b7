"""Every SQL statement of every entry point fails once: what the plugin answers, keeps and logs.

``--matrix`` prints what came of the sample, ``--full`` tries every statement with every fault.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kill_rounds
from support import UID, FakeClock, StandInHost, plugin_module
from test_crowds import fold
from test_hooks import PRIVATE

commands = plugin_module("commands")
hooks = plugin_module("hooks")
identity = plugin_module("identity")
policy = plugin_module("policy")
prompt = plugin_module("prompt")
store = plugin_module("store")
tools = plugin_module("tools")
transport = plugin_module("transport")

SETTINGS = policy.Settings()
GRANTED = {"command": "make backup"}
LATER = "while the store could not be used"  # an owner's row that was kept for later
TELLTALE = re.compile(r"Traceback|\w+(?:Error|Exception)\b|Store(?:Busy|Unusable)|SQLITE_|sqlite3"
                      r"|injected")


# -- faults ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """What SQLite answers: `ends` the transaction by itself, at every later statement as well
    (`lasting`), or only once the statement has done its work (`after`)."""

    name: str
    code: int
    error: type[sqlite3.Error] = sqlite3.OperationalError
    ends: bool = False
    lasting: bool = False
    after: bool = False

    def raised(self) -> sqlite3.Error:
        error = self.error(f"injected {self.name}")
        error.sqlite_errorcode, error.sqlite_errorname = self.code, f"SQLITE_{self.name}"
        return error


ONCE = (Fault("BUSY", sqlite3.SQLITE_BUSY), Fault("FULL", sqlite3.SQLITE_FULL, ends=True),
        Fault("IOERR", sqlite3.SQLITE_IOERR),
        Fault("CORRUPT", sqlite3.SQLITE_CORRUPT, sqlite3.DatabaseError),
        Fault("READONLY", sqlite3.SQLITE_READONLY))
LASTING = Fault("FULL", sqlite3.SQLITE_FULL, lasting=True)
AFTER = Fault("IOERR", sqlite3.SQLITE_IOERR, after=True)  # tried on COMMIT alone
FAULTS = (*ONCE, LASTING, AFTER)


class Wire:
    """A connection that counts its statements, and fails at one of them."""

    def __init__(self, conn: Any, fault: Fault | None = None, at: int = -1) -> None:
        self._conn, self._fault, self._at = conn, fault, at
        self.said: list[str] = []
        self.fired = 0

    def execute(self, *call: Any) -> Any:
        return self._run(self._conn.execute, *call)

    def executemany(self, *call: Any) -> Any:
        return self._run(self._conn.executemany, *call)

    def _run(self, run: Callable[..., Any], *call: Any) -> Any:
        number = len(self.said)
        self.said.append(call[0])
        fault = self._fault
        if fault is None or not (number == self._at or (fault.lasting and number > self._at)):
            return run(*call)
        self.fired += 1
        if fault.after:
            run(*call)
        elif fault.ends and self._conn.in_transaction:
            self._conn.execute("ROLLBACK")
        raise fault.raised()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


def wire_of(opened: Any, fault: Fault | None = None, at: int = -1) -> Wire:
    """Put a wire around a store's connection: the one place that reaches inside it.

    A store that has dropped its connection opens the file anew first.
    """
    if opened._conn is None:
        with opened.transaction():
            pass
    conn = opened._conn
    opened._conn = Wire(conn._conn if isinstance(conn, Wire) else conn, fault, at)
    return opened._conn


# -- the house ---------------------------------------------------------------------------------


class Request(SimpleNamespace):
    """The host's approval request; its time is over after a few steps of the clock."""

    def respond(self, choice: str) -> str:
        return choice


class House(StandInHost):
    """A bot on one file, its parts built here, so that time, codes and nonces repeat."""

    def __init__(self, path: Path, seed: str = "trial") -> None:
        super().__init__({"db_path": str(path)})
        self.path, self.clock = path, FakeClock()
        self.on_inject: Callable[[], object] = lambda: None
        self._steps = itertools.count()
        self._eye: sqlite3.Connection | None = None
        self.rewind(seed)
        self.store = store.Store(lambda: path, clean=lambda text: identity.shown(text, 2000))
        given: dict[str, Any] = {"settings": lambda: SETTINGS}
        self.resolver = identity.Resolver(uid=UID.removeprefix("uid:"), monotonic=self._step,
                                          **given)
        self.desk = transport.Desk(self.store, self.resolver, draw=self._draw, nonce=self._nonce,
                                   inject=self.inject_message, **given)
        self._wire_up({**given, "clock": self.clock})

    def _wire_up(self, given: dict[str, Any]) -> None:
        """The same parts as `register` makes, in the place of those it made."""
        own = hooks.Hooks(self.store, self.resolver, self.desk, identity.Doorstep(), **given)
        for kept in (self.hooks, self.middleware):
            kept.update({name: getattr(own, name) for name in kept})
        own_tools = tools.Tools(self.store, self.resolver, **given)
        for name, spec in self.tools.items():
            spec.handler = own_tools.handler(name)
        self.commands["many"] = commands.Commands(self.store, self.resolver, self.desk,
                                                  draw=self._draw, **given).many
        self.transports["manyhands"] = transport.HostTransport(
            self.store, self.resolver, self.desk, monotonic=self._step, **given).present

    def rewind(self, seed: str) -> None:
        """Draw the same codes and nonces again."""
        self._random = random.Random(seed)

    def _draw(self, length: int) -> str:
        return "".join(self._random.choice(identity.CODE_ALPHABET) for _ in range(length))

    def _nonce(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _step(self) -> float:
        return next(self._steps) / 100

    def inject_message(self, content: str, role: str = "user", **where: Any) -> bool:
        sent = super().inject_message(content, role, **where)
        self.on_inject()
        return sent

    # -- one call of each kind

    def turn(self, user: str, text: str = "hi", *, session: str = "", chat: str = "dm") -> Any:
        session = session or f"s-{user}"
        with self.bound(**self._place(user, "", chat, "telegram")):
            return self.hooks["pre_llm_call"](
                turn_id=f"t-{session}", session_id=session, task_id=session, user_message=text,
                conversation_history=[], is_first_turn=True, model="m", platform="telegram",
                sender_id=user)

    def door(self, user: str, text: str = "hi") -> Any:
        source = {"platform": "telegram", "user_id": user, "user_name": f"N{user}",
                  "chat_id": user, "chat_type": "dm", "thread_id": ""}
        return self.hooks["post_gateway_admission"](source=source, text=text, platform="telegram")

    def tool(self, session: str, name: str, args: dict[str, Any]) -> Any:
        return self.hooks["pre_tool_call"](tool_name=name, args=args, turn_id=f"t-{session}",
                                           session_id=session, task_id=session)

    def request(self, session: str, said: str = "hi", *, turn: str = "") -> Any:
        messages = [{"role": "system", "content": PRIVATE}, {"role": "user", "content": "hi"}]
        messages += [] if said == "hi" else [{"role": "user", "content": said}]
        return self.middleware["llm_request"](
            request={"model": "m", "messages": messages}, turn_id=turn or f"t-{session}",
            session_id=session, task_id=session, api_mode="chat_completions", platform="telegram")

    def usage(self, session: str) -> Any:
        return self.hooks["post_api_request"](usage={"total_tokens": 7}, turn_id=f"t-{session}",
                                              session_id=session, task_id=session)

    def handler(self, session: str, name: str, args: dict[str, Any]) -> str:
        return str(self.tools[name].handler(args, session_id=session, task_id=session))

    def present(self, command: str) -> Any:
        try:
            return self.transports["manyhands"](Request(
                command=command, description="d", timeout_seconds=2.06,
                allowed_choices=("once", "deny")))
        except transport.HandBack:
            return "handed back"

    # -- the file, seen from outside

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """By a connection that stays, so that closing the store has no log to fold in."""
        if self._eye is None:
            self._eye = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)
        return self._eye.execute(sql).fetchall()

    def close(self) -> None:
        self.store.close()
        if self._eye is not None:
            self._eye.close()

    def state(self, mark: int) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of the file, of the audit those after `mark`."""
        kept = {name: self.rows(f"SELECT * FROM {name} ORDER BY 1, 2") for name in TABLES}
        kept["audit"] = self.rows(
            "SELECT at, kind, event, person_id, tool, code, detail FROM audit "
            f"WHERE audit_id > {mark} AND detail <> '{LATER}' ORDER BY audit_id")
        return kept

    def is_sound(self) -> bool:
        return self.rows("PRAGMA integrity_check") == [("ok",)]

    def mark(self) -> int:
        return int(self.rows("SELECT coalesce(max(audit_id), 0) FROM audit")[0][0])


TABLES = ("people", "accounts", "addresses", "tool_rules", "facts", "shared_facts", "terms",
          "counters", "sessions", "lineage", "invites", "claims", "approvals", "notices",
          "settings", "usage", "attempts")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The file that every trial starts from, and the codes in it."""

    data: bytes
    codes: dict[str, str] = field(default_factory=dict)


@functools.cache
def prepared() -> Prepared:
    """A household with facts, an invite, a claim, and an ask in every state."""
    with tempfile.TemporaryDirectory(prefix="manyhands-test-") as folder:
        path = Path(folder) / "manyhands.db"
        house = House(path, "prepared")
        codes = {"first": secret_in(house.terminal_command("claim"))}
        house.command("111", f"claim {codes['first']}", name="Boss")
        for line in ("add telegram 222 member Minh", "add telegram 333 member Lan",
                     "add telegram 444 blocked Bad"):
            house.command("111", line, name="Boss")
        house.turn("222")
        codes |= ask_for_everything(house)
        for n in (1, 2):
            house.tool("s-222", "manyhands_remember", {"text": f"fact {n}"})
            house.handler("s-222", "manyhands_remember", {"text": f"fact {n}"})
        house.tool("s-222", "manyhands_share", {"text": "tea at five"})
        house.handler("s-222", "manyhands_share", {"text": "tea at five"})
        codes["invite"] = secret_in(house.command("111", "invite member", name="Boss"))
        house.close()
        fresh = House(path, "claimed")
        codes["claim"] = secret_in(fresh.terminal_command("claim"))
        fresh.close()
        return Prepared(path.read_bytes(), codes)


def ask_for_everything(house: House) -> dict[str, str]:
    """Codes by tool: terminal is granted, patch denied, write_file is waiting."""
    codes: dict[str, str] = {}
    for tool, answer in (("terminal", "approve {}"), ("patch", "deny {}"), ("write_file", "")):
        house.tool("s-222", tool, GRANTED)
        codes[tool] = house.rows(f"SELECT code FROM approvals WHERE tool = '{tool}'")[0][0]
        if answer:
            house.command("111", answer.format(codes[tool]), name="Boss")
    return codes


def secret_in(text: str) -> str:
    return next(w for w in text.split() if identity.looks_like_secret(w))


# -- entry points ------------------------------------------------------------------------------


def nothing(_house: House) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Entry:
    """One way in. `first` is done before each call, outside the trial; `loose` says that the call
    takes several transactions, so a part of it may be done when it fails."""

    name: str
    kind: str
    call: Callable[[House], Any]
    first: Callable[[House], Any] = nothing
    owner: bool = False
    loose: bool = False


def code(name: str) -> str:
    return prepared().codes[name]


def turns_and_doors() -> Iterator[Entry]:
    yield Entry("turn, member", "turn", lambda h: h.turn("222"))
    yield Entry("turn, owner", "turn", lambda h: h.turn("111"), owner=True)
    yield Entry("turn, stranger", "turn", lambda h: h.turn("999"))
    yield Entry("turn, stranger with an invite", "turn",
                lambda h: h.turn("999", f"join {code('invite')}"))
    yield Entry("turn, stranger with a wrong code", "turn",
                lambda h: h.turn("999", "join AAAAA-AAAAA"))
    yield Entry("turn, blocked", "turn", lambda h: h.turn("444"))
    yield Entry("turn, member's subagent", "turn", lambda h: h.hooks["pre_llm_call"](
        turn_id="t-kid", session_id="kid", task_id="kid", user_message="x", platform="subagent",
        sender_id=""), lambda h: start_child(h, "kid"))
    yield Entry("turn, owner's notice", "turn", lambda h: h.turn(
        "111", notice(h, "ask"), session="s-notice"), owner=True)
    yield Entry("turn, member told to go on", "turn", lambda h: h.turn("222", notice(h, "resume")))
    yield Entry("turn, command as text", "turn", lambda h: h.turn("222", "/many facts"))
    yield Entry("door, member", "door", lambda h: h.door("222"))
    yield Entry("door, owner", "door", lambda h: h.door("111"), owner=True)
    yield Entry("door, stranger", "door", lambda h: h.door("999"))
    yield Entry("door, stranger with an invite", "door",
                lambda h: h.door("999", f"join {code('invite')}"))
    yield Entry("dispatch, member", "door", lambda h: h.dispatch("222", "/yolo"))
    yield Entry("dispatch, owner", "door", lambda h: h.dispatch("111", "/yolo"), owner=True)
    yield Entry("dispatch, stranger", "door", lambda h: h.dispatch("999", "/yolo"))


def start_child(house: House, child: str) -> Any:
    return house.hooks["subagent_start"](parent_turn_id="t-s-222", child_session_id=child)


def in_a_room(house: House) -> None:
    """A turn of the owner runs in a room."""
    if house.resolver.turn("t-room") is None:
        house.turn("111", session="room", chat="group:G1")


def join_in(house: House) -> None:
    """The member's words have reached that turn."""
    in_a_room(house)
    house.request("room", fold(("222", "run it all")))


def blocked_before(house: House) -> None:
    if house.resolver.turn("t-s-444") is None:
        house.turn("444")


def notice(house: House, kind: str) -> str:
    """The text of a notice that was sent, as it comes back in a turn."""
    nonce = house.rows(f"SELECT nonce FROM notices WHERE kind = '{kind}' ORDER BY ask_id DESC")
    return str(prompt.notice_text(nonce[0][0]))


def calls() -> Iterator[Entry]:
    yield Entry("tool, allow", "tool", lambda h: h.tool("s-222", "web_search", {"q": "x"}))
    yield Entry("tool, ask", "tool", lambda h: h.tool("s-222", "terminal", {"command": "new"}))
    yield Entry("tool, ask again", "tool", lambda h: h.tool("s-222", "write_file", GRANTED))
    yield Entry("tool, ask, others replaced", "tool", lambda h: h.tool(
        "s-222", "write_file", {"path": "other"}))
    yield Entry("tool, denied before", "tool", lambda h: h.tool("s-222", "patch", GRANTED))
    yield Entry("tool, refuse", "tool", lambda h: h.tool("s-222", "memory", {}))
    yield Entry("tool, spends a grant", "tool", lambda h: h.tool("s-222", "terminal", GRANTED))
    yield Entry("tool, ask, no gateway takes it", "tool", lambda h: h.tool(
        "s-222", "terminal", {"command": "new"}), lambda h: setattr(h, "injects", False),
        loose=True)
    yield Entry("tool, owner", "tool", lambda h: h.tool("s-111", "terminal", {}), owner=True)
    yield Entry("tool, owner's turn, several speak", "tool",
                lambda h: h.tool("room", "terminal", {}), join_in)
    yield Entry("tool, nobody's", "tool", lambda h: h.tool("nowhere", "terminal", {}))
    yield Entry("tool, blocked person's turn", "tool",
                lambda h: h.tool("s-444", "web_search", {}), lambda h: h.turn("444"))


def requests() -> Iterator[Entry]:
    yield Entry("request, member", "request", lambda h: h.request("s-222"))
    yield Entry("request, owner", "request", lambda h: h.request("s-111"), owner=True)
    yield Entry("request, nobody's", "request", lambda h: h.request("nowhere"))
    yield Entry("request, owner's turn, several speak", "request",
                lambda h: h.request("room", fold(("222", "run it all"))), in_a_room)
    yield Entry("request, the next one of that turn", "request", lambda h: h.request("room"),
                join_in)
    yield Entry("request, review for a blocked person", "request",
                lambda h: h.request("s-444", turn="t-review"), blocked_before)
    yield Entry("usage, member", "silent", lambda h: h.usage("s-222"))
    yield Entry("usage, nobody's", "silent", lambda h: h.usage("nowhere"))
    yield Entry("subagent_start", "silent", lambda h: start_child(h, "kid"))


def handlers() -> Iterator[Entry]:
    for name, args in (("whoami", {}), ("people", {}), ("remember", {"text": "new"}),
                       ("recall", {"query": "fact"}), ("share", {"text": "new"})):
        tool = f"manyhands_{name}"
        yield Entry(f"handler, {name}", "json",
                    functools.partial(House.handler, session="s-222", name=tool, args=args),
                    functools.partial(House.tool, session="s-222", name=tool, args=args))
    yield Entry("handler, audit, no hook before it", "json",
                lambda h: h.handler("s-222", "manyhands_audit", {}))


OWNER_LINES = (
    "help", "whoami", "roster", "invite", "invites", "add telegram 777 member New",
    "role Lan guest", "rename Lan Lanh", "remove Lan", "tools Minh", "tools Minh add terminal",
    "budget Minh 100", "pause", "lockdown", "resume", "approve", "approve {write_file}",
    "approve {write_file} 3x any", "approve {patch}", "deny {write_file} not now",
    "show {write_file}", "grants", "revoke {terminal}", "revoke 1", "audit all", "audit Minh 5",
    "why Minh terminal", "usage", "facts", "unshare 1", "export", "nonsense", "remove Boss")
MEMBER_LINES = (
    "help", "whoami", "roster", "audit", "facts", "forget 1", "forget all", "unshare 1", "export",
    "approve", "approve {write_file}", "invite", "claim AAAAA-AAAAA", "forget 99")
STRANGER_LINES = ("help", "whoami", "claim {claim}", "claim AAAAA-AAAAA", "roster")


def verbs() -> Iterator[Entry]:
    for user, who, lines in (("111", "owner", OWNER_LINES), ("222", "member", MEMBER_LINES),
                             ("999", "stranger", STRANGER_LINES)):
        for line in lines:
            yield Entry(f"/many {line}, {who}", "text", functools.partial(typed, user, line))


def typed(user: str, line: str, house: House) -> str:
    return house.command(user, line.format(**prepared().codes), name=f"N{user}")


def prompts() -> Iterator[Entry]:
    """The host's own prompts. A granted call's is answered at once, others' by an owner or not."""
    yield Entry("transport, nobody answers", "transport", lambda h: h.present("rm x"), loose=True)
    yield Entry("transport, no gateway takes it", "transport", lambda h: h.present("rm x"),
                lambda h: setattr(h, "injects", False), loose=True)
    yield Entry("transport, the owner approves", "transport", lambda h: h.present("rm x"),
                lambda h: setattr(h, "on_inject", functools.partial(approve_host, h)), loose=True)
    yield Entry("transport, by a grant", "transport", lambda h: h.present(GRANTED["command"]),
                in_flight_by_grant, loose=True)
    yield Entry("transport, owner's own", "transport", lambda h: h.present("rm mine"),
                lambda h: h.tool("s-111", "terminal", {"command": "rm mine"}), loose=True)


def approve_host(house: House) -> None:
    for (waiting,) in house.rows(
            "SELECT code FROM approvals WHERE kind = 'host' AND closed_at IS NULL"):
        house.command("111", f"approve {waiting}", name="Boss")


def in_flight_by_grant(house: House) -> None:
    house.request("s-222")  # nothing of an earlier attempt is in flight any more
    house.tool("s-222", "terminal", GRANTED)


def entries() -> list[Entry]:
    return [*turns_and_doors(), *calls(), *requests(), *handlers(), *verbs(), *prompts()]


# -- one trial ---------------------------------------------------------------------------------


class Records(logging.Handler):
    """What was logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@contextmanager
def records() -> Iterator[Records]:
    handler, logger = Records(), logging.getLogger("manyhands")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


@dataclass(slots=True)
class Seen:
    """What one call answered and left behind."""

    answer: Any
    state: dict[str, list[tuple[Any, ...]]]
    logged: int
    said: list[str]
    fired: int


def opens(kind: str, answer: Any) -> bool:
    """Did this answer let the call, the turn or the private text through?"""
    if kind == "turn":
        return not (isinstance(answer, dict) and answer.get("action") == "block")
    if kind == "request":
        return answer is None or "CANARY-MEMORY" in json.dumps(answer)
    if kind == "transport":
        return bool(answer in ("once", "handed back"))
    return kind in ("tool", "door") and answer is None


def words_of(answer: Any) -> str:
    """What somebody, or their model, reads of an answer."""
    if isinstance(answer, dict) and "request" not in answer:
        said = [answer.get(key) for key in ("message", "reply", "text", "reason", "context")]
        return " ".join(filter(None, said))
    return answer if isinstance(answer, str) else json.dumps(answer)


class Bench:
    """Runs trials, each on a fresh copy of the prepared file."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="manyhands-test-"))
        self._numbers = itertools.count()
        self._good: dict[str, Seen] = {}
        self.matrix: dict[str, dict[str, Counter[str]]] = {}

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def house(self) -> Iterator[House]:
        """The owner and a member have each begun a turn, so this process knows them."""
        path = self.folder / f"{next(self._numbers)}.db"
        path.write_bytes(prepared().data)
        house = House(path)
        wire_of(house.store).execute("PRAGMA synchronous = OFF")  # no power is cut here
        house.turn("111")
        house.turn("222")
        try:
            yield house
        finally:
            house.close()
            for left in self.folder.glob(f"{path.name}*"):
                left.unlink()

    def once(self, house: House, entry: Entry, fault: Fault | None = None, at: int = -1,
             seed: str = "trial") -> Seen:
        entry.first(house)
        house.rewind(seed)
        mark, wire = house.mark(), wire_of(house.store, fault, at)
        with records() as seen:
            try:
                answer = entry.call(house)
            except Exception as error:  # nothing may be raised into the host
                answer = f"raised {type(error).__name__}"
        return Seen(answer, house.state(mark), seen.count, wire.said, wire.fired)

    def good(self, entry: Entry) -> Seen:
        if entry.name not in self._good:
            with self.house() as house:
                self._good[entry.name] = self.once(house, entry)
        return self._good[entry.name]

    def trial(self, entry: Entry, fault: Fault, at: int) -> list[str]:
        """What is wrong when statement number `at` of this entry point fails like this."""
        good = self.good(entry)
        with self.house() as house:
            first = self.once(house, entry, fault, at)
            wrong = list(wrong_answer(entry, fault, good, first))
            again = self.once(house, entry, seed="another" if fault.after else "trial")
            if (first.answer, first.state) != (good.answer, good.state):  # else it was done
                wrong += wrong_again(entry, fault, good, again)
            if house.tool("s-111", "terminal", {}) is not None:
                wrong.append("the owner cannot act afterwards")
            if not house.is_sound():
                wrong.append("the file is damaged")
        self._count(entry, fault, good, first)
        return wrong

    def _count(self, entry: Entry, fault: Fault, good: Seen, seen: Seen) -> None:
        column = f"{fault.name}{' lasting' * fault.lasting}{' after' * fault.after}"
        outcome = "as ever" if seen.answer == good.answer else \
            "open" if opens(entry.kind, seen.answer) else "closed"
        if entry.kind == "silent" and seen.state != good.state:
            outcome = "not done"
        self.matrix.setdefault(entry.name, {}).setdefault(column, Counter())[outcome] += 1


def wrong_answer(entry: Entry, fault: Fault, good: Seen, seen: Seen) -> Iterator[str]:
    """What no failure may do."""
    same, kept = seen.answer == good.answer, seen.state == good.state
    opened, may = opens(entry.kind, seen.answer), opens(entry.kind, good.answer)
    words = words_of(seen.answer)
    if not seen.fired:
        yield "the fault was not met"
    if opened and not may and not entry.owner:
        yield f"it runs, though it would have been refused: {seen.answer!r:.80}"
    if entry.owner and may and not opened:
        yield f"the owner is refused: {words:.80}"
    if not words or TELLTALE.search(words) or words.startswith("raised "):
        yield f"it answers {words!r:.120}"
    if opened and not entry.owner and not same:
        yield f"it is let through with another answer: {words:.80}"
    if same and not kept and not (entry.owner or entry.loose or entry.kind == "silent"):
        changed = [name for name in good.state if good.state[name] != seen.state[name]]
        yield f"it says that all is done, but {', '.join(changed)} was not written: {words:.60}"
    least = 0 if same and (kept or entry.loose) else 1
    if fault.lasting or fault.after or entry.loose:
        least = 0
    if not least <= seen.logged - good.logged <= 1:
        yield f"{seen.logged - good.logged} log records"


def wrong_again(entry: Entry, fault: Fault, good: Seen, again: Seen) -> Iterator[str]:
    """What the next call may not be: other than if nothing had happened."""
    if again.logged > good.logged:
        yield f"the next call fails as well: {words_of(again.answer):.80}"
    if opens(entry.kind, again.answer) and not opens(entry.kind, good.answer) \
            and not entry.owner:
        yield "the next call runs"
    if fault.after or entry.loose:
        return
    if again.answer != good.answer:
        yield f"the next call answers {words_of(again.answer)!r:.120}"
    changed = [name for name in good.state if again.state[name] != good.state[name]]
    if changed:
        yield f"the next call leaves {', '.join(changed)} otherwise"


# -- the tests ---------------------------------------------------------------------------------


def trials(bench: Bench, entry: Entry) -> list[tuple[Fault, int]]:
    """Every fault at every statement; the failure after the work only where work is committed."""
    said = bench.good(entry).said
    return [(fault, at) for fault in FAULTS for at, sql in enumerate(said)
            if not fault.after or sql == "COMMIT"]


def sampled(bench: Bench, entry: Entry, more: int) -> list[tuple[Fault, int]]:
    """One fault at each first and last statement, and `more` others, the same in every run."""
    every, last = trials(bench, entry), len(bench.good(entry).said) - 1
    chance = random.Random(entry.name)
    ends = [chance.choice([trial for trial in every if trial[1] == at]) for at in {0, last}]
    return ends + chance.sample(every, min(more, len(every)))


def setUpModule() -> None:
    """One bench for all: its good runs do not change, and every trial has a file of its own."""
    FaultCase.bench = Bench()
    unittest.addModuleCleanup(FaultCase.bench.close)


class FaultCase(unittest.TestCase):
    bench: Bench

    def walk(self, some: Iterator[Entry], more: int = 2) -> None:
        for entry in some:
            self.assertTrue(self.bench.good(entry).said, entry.name)
            for fault, at in sampled(self.bench, entry, more):
                with self.subTest(entry=entry.name, fault=fault.name, lasting=fault.lasting,
                                  after=fault.after, statement=self.bench.good(entry).said[at],
                                  number=at):
                    self.assertEqual(self.bench.trial(entry, fault, at), [])


class Contract20AFaultNeverTurnsARefusalIntoARun(FaultCase):
    """And is over once it is over: the next call is as if nothing had happened."""

    def test_turns_and_doors(self):
        self.walk(turns_and_doors(), more=2)

    def test_tool_calls(self):
        self.walk(calls(), more=3)

    def test_requests_usage_and_subagents(self):
        self.walk(requests(), more=2)

    def test_the_tools_own_handlers(self):
        self.walk(handlers())

    def test_typed_commands(self):
        self.walk(verbs(), more=1)

    def test_the_host_s_prompts(self):
        self.walk(prompts())


class TheGoodRuns(FaultCase):
    """The faults above would prove little if the calls did not do what they are named for."""

    def test_run_where_they_should_and_nowhere_else(self):
        runs = {entry.name for entry in entries()
                if opens(entry.kind, self.bench.good(entry).answer)}
        self.assertEqual(runs, {
            "turn, member", "turn, owner", "turn, member told to go on",
            "turn, member's subagent", "door, member", "door, owner", "dispatch, owner",
            "tool, allow", "tool, spends a grant", "tool, owner", "request, owner",
            "transport, the owner approves", "transport, by a grant", "transport, owner's own"})


class AGrant(FaultCase):
    def test_is_spent_once_at_most_whichever_statement_fails(self):
        entry = next(entry for entry in calls() if entry.name == "tool, spends a grant")
        for fault, at in trials(self.bench, entry):
            if fault not in (ONCE[1], AFTER):
                continue
            with self.subTest(fault=fault.name, at=at), self.bench.house() as house:
                wire_of(house.store, fault, at)
                with records():
                    ran = [entry.call(house) for _ in range(3)].count(None)
                self.assertEqual(ran, 0 if fault.after and ran == 0 else 1)


class TheOwner(FaultCase):
    def test_still_acts_while_everything_fails_and_the_row_is_written_later(self):
        for fault in ONCE:
            lasting = Fault(fault.name, fault.code, fault.error, lasting=True)
            with self.subTest(fault=fault.name), self.bench.house() as house:
                mark = house.mark()
                wire_of(house.store, lasting, 0)
                with records() as logged:
                    self.assertIsNone(house.tool("s-111", "terminal", {}))
                self.assertEqual(logged.count, 1)
                wire_of(house.store)
                house.turn("222")
                self.assertEqual(house.rows(
                    f"SELECT count(*) FROM audit WHERE audit_id > {mark} AND kind = 'tool' "
                    f"AND person_id = 'telegram:111' AND detail = '{LATER}'"), [(1,)])


class Contract20AKilledProcessLosesNothingThatItReported(unittest.TestCase):
    def test_in_a_few_rounds(self):
        with tempfile.TemporaryDirectory(prefix="manyhands-test-") as folder:
            rounds = kill_rounds.Rounds(Path(folder), seed=8)
            for number in range(8):
                with self.subTest(round=number):
                    self.assertEqual(rounds.one(longest_s=0.15), [])
            self.assertGreater(rounds.counts["run"], 0)


# -- run directly ------------------------------------------------------------------------------


def print_matrix(bench: Bench) -> None:
    columns = [f"{f.name}{' lasting' * f.lasting}{' after' * f.after}" for f in FAULTS]
    for name, row in bench.matrix.items():
        statements = len(next(bench.good(entry) for entry in entries()
                              if entry.name == name).said)
        print(f"{name} ({statements} statements)")
        for column in columns:
            outcomes = row.get(column, Counter())
            if outcomes:
                told = ", ".join(f"{n} {word}" for word, n in sorted(outcomes.items()))
                print(f"    {column:<13} {outcomes.total():>3} tried: {told}")


def main(words: list[str]) -> int:
    bench, wrong, tried = Bench(), 0, 0
    logging.getLogger("manyhands").addHandler(logging.NullHandler())
    try:
        for entry in entries():
            chosen = trials(bench, entry) if "--full" in words else sampled(bench, entry, 5)
            for fault, at in chosen:
                tried += 1
                problems = bench.trial(entry, fault, at)
                wrong += bool(problems)
                for problem in problems:
                    print(f"WRONG {entry.name} / {fault} at {at} "
                          f"{bench.good(entry).said[at]!r:.70}: {problem}")
        if "--matrix" in words:
            print_matrix(bench)
        print(f"{tried} faults tried, {wrong} with something wrong")
        return int(wrong > 0)
    finally:
        bench.close()


if __name__ == "__main__":
    if {"--full", "--matrix"} & set(sys.argv[1:]):
        raise SystemExit(main(sys.argv[1:]))
    unittest.main()
