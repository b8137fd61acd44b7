"""Who is speaking: evidence to `Principal`, and who gets in.

Owns the evidence of each kind of call, admission with its invites, claims and lockouts, names, and
`shown`, the one function that makes text of people or models safe to print. Identity comes from
the platform's event, never from a message's text, a display name or anything a model wrote. In
doubt it is nobody.
"""

from __future__ import annotations

import contextvars
import hmac
import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

from .policy import (
    GRANTABLE_BY_INVITE,
    VERBS,
    Mode,
    Role,
    Settings,
    Standing,
    ToolLists,
    is_governed,
    is_raise,
)
from .store import DAY_S, Row, Tx, day_of, digest

# -- text that people and models wrote ---------------------------------------------------------

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
# Default-ignorable or blank characters whose category does not give them away.
_HIDDEN = frozenset(map(chr, (
    0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0,
    *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9),
    *range(0xE0000, 0xE1000))))
# What would fire on a chat platform or end the code block that the text stands in.
_ACTIVE = re.compile(r"[`@]|://|\\u\{| {4,}")


def is_hidden(char: str) -> bool:
    """True for a character that shows nothing, reorders text or starts a new line."""
    return (char in _HIDDEN or unicodedata.category(char) in _HIDDEN_CATEGORIES
            or (char != " " and unicodedata.category(char) == "Zs"))


def has_hidden(text: str) -> bool:
    return not (text.isascii() and text.isprintable()) and any(map(is_hidden, text))


def shown(text: str, limit: int = 0) -> str:
    """`text` as one safe, reversible line: what cannot be seen or would fire is spelled out.

    Hidden characters, backticks, `@`, `://`, runs of four or more spaces and a literal `\\u{`
    become `\\u{...}`; everything else is verbatim. With `limit`, longer text is cut first and
    says how long it was.
    """
    whole = len(text)
    if limit and whole > limit:
        return f"{shown(text[:limit])}… ({whole} characters)"
    if not (text.isascii() and text.isprintable()):
        text = "".join(_spelled(c) if is_hidden(c) else c.replace("\\", "\0") for c in text)
    elif "\\" in text:
        text = text.replace("\\", "\0")
    else:
        return _ACTIVE.sub(_spell_active, text)
    # A real backslash is held as NUL here (NUL itself is hidden and already spelled), so that it
    # cannot be told apart from the ones that `_spelled` writes.
    text = text.replace("\0u{", "\\u{5c}u{").replace("\0", "\\\0")
    return _ACTIVE.sub(_spell_active, text).replace("\\\0", "\\")


def shown_lines(text: str) -> list[str]:
    """`text` as safe lines, cut at its line feeds and nowhere else."""
    return [shown(line) for line in text.split("\n")]


def _spelled(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"


def _spell_active(match: re.Match[str]) -> str:
    found = match.group()
    if found == "://":
        return ":\\u{2f}\\u{2f}"
    if found[0] == " ":
        return f"\\u{{20 x{len(found)}}}"
    return found if found == "\\u{" else _spelled(found)


# -- names -------------------------------------------------------------------------------------

MAX_NAME = 40
_NAME_MAY_NOT_HOLD = frozenset(":`*~|[]<>\\@#\"")
_RESERVED = frozenset({*VERBS, *(role.value for role in Role), "all", "default", "me",
                       "the owner", "the terminal", "an owner", "somebody", "nobody", "manyhands",
                       "an unidentified call"})


def name_key(name: str) -> str:
    """What makes two names the same: compatibility-normalised, case-folded, blanks collapsed."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def name_problem(name: str) -> str | None:
    """What is wrong with a name an owner typed; None when it can be kept."""
    if not name.strip():
        return "a name cannot be empty"
    if len(name) > MAX_NAME:
        return f"a name has at most {MAX_NAME} characters"
    if any(is_hidden(c) for c in name):
        return "a name has no invisible characters"
    if not _NAME_MAY_NOT_HOLD.isdisjoint(unicodedata.normalize("NFKC", name)):
        return 'a name has none of : @ # ` * ~ | [ ] < > \\ "'
    key = name_key(name)
    if key.startswith("-") or key != key.strip("_"):
        return "a name does not start with - or _ and does not end with _"
    if key in _RESERVED or _is_number(key):
        return "a name is not a number, a role, a verb or the word all"
    return None


def _is_number(key: str) -> bool:
    return all(unicodedata.category(c)[0] == "N" or c in " .,+" for c in key)


def name_from_display(display: str) -> str:
    """A valid name made of a platform's display name; empty when nothing of it is left."""
    text = unicodedata.normalize("NFC", display)
    kept = "".join(" " if is_hidden(c) else c for c in text
                   if _NAME_MAY_NOT_HOLD.isdisjoint(unicodedata.normalize("NFKC", c)))
    name = " ".join(kept.split())[:MAX_NAME - 4].strip(" _-")
    return name if name and name_problem(name) is None else ""


def free_name(tx: Tx, wanted: str, *, role: Role) -> str:
    """A name nobody has yet: `wanted`, else numbered, else the role with a number."""
    base = name_from_display(wanted)
    if base and tx.person_by_name(name_key=name_key(base)) is None:
        return base
    while True:
        stem = base or role.value
        number = tx.next_number(name=f"name {name_key(stem)}")
        suffix = f" {number + 1 if base else number}"
        name = stem[:MAX_NAME - len(suffix)].rstrip() + suffix
        if tx.person_by_name(name_key=name_key(name)) is None:
            return name


# -- codes -------------------------------------------------------------------------------------

# No 0 O, 1 I L, 5 S, 8 B, 2 Z, U V: 24 symbols, 4.58 bits each.
CODE_ALPHABET = "34679ACDEFGHJKMNPQRTUWXY"
SECRET_LENGTH = 10   # 45 bits: invites and claims, which a stranger may try
ASK_CODE_LENGTH = 4  # only an owner can use one
Draw = Callable[[int], str]  # n characters of CODE_ALPHABET, from `secrets` in production


def normal_code(text: str) -> str:
    """A typed code without its case and whatever stands between or around its characters."""
    return re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", text)).upper()


def spaced_code(code: str) -> str:
    """A secret as it is printed: two groups."""
    half = len(code) // 2
    return f"{code[:half]}-{code[half:]}"


def looks_like_secret(text: str) -> bool:
    code = normal_code(text)
    return len(code) == SECRET_LENGTH and set(code) <= set(CODE_ALPHABET)


def _matching(rows: Iterable[Row], code: str) -> Row | None:
    """The row whose hash is this code's; every row is compared, each in constant time."""
    wanted = digest(normal_code(code))
    found = None
    for row in rows:
        if hmac.compare_digest(str(row["code_hash"]), wanted):
            found = row
    return found


# -- values ------------------------------------------------------------------------------------


class Evidence(StrEnum):
    """What an attribution rests on, strongest first."""

    SOURCE = "the platform's event"
    CONTEXT = "the sender bound for this command"
    TURN = "the turn"
    LINK = "the call that was just judged"
    TASK = "the task"
    CODE = "the execute_code in flight"
    SUBAGENT = "the turn that started the subagent"
    SESSION = "the session's only speaker"
    SEAT = "the operator's own terminal"
    MACHINE = "the operator's automation"
    TRUSTED = "unknown_session_policy: operator"
    NONE = "nothing"


class Account(NamedTuple):
    """One sender on one platform. Ids are text; they may hold `:` and be very long."""

    platform: str
    sender_id: str

    @property
    def key(self) -> str:
        return f"{self.platform}:{self.sender_id}"

    @classmethod
    def of_key(cls, key: str) -> Account:
        platform, _, sender_id = key.partition(":")
        return cls(platform, sender_id)


CRON = Account("cron", "")


class Sender(NamedTuple):
    """An account together with where and under what name the platform says it is speaking."""

    account: Account
    name: str = ""
    chat_id: str = ""
    chat_type: str = ""
    thread_id: str = ""

    @property
    def is_direct(self) -> bool:
        return self.chat_type == "dm"


class Principal(NamedTuple):
    """Who one call is attributed to.

    `role` is None for somebody who is not on the roster; `account` is None for nobody at all, and
    `why` then says what was missing. `background` work may not ask.
    """

    account: Account | None
    person_id: str
    name: str
    role: Role | None
    evidence: Evidence
    why: str = ""
    background: bool = False
    via_subagent: bool = False

    @property
    def is_identified(self) -> bool:
        return self.account is not None

    @property
    def is_owner(self) -> bool:
        return self.role is Role.OWNER

    @property
    def via(self) -> str:
        """What stood between this person and the call, for a prompt; usually empty."""
        if self.via_subagent:
            return "a subagent"
        return "code that execute_code runs" if self.evidence is Evidence.CODE else ""


_MACHINE_MARKERS = ("[cron]", "[IMPORTANT:")  # what 0.23 itself writes before a scheduled prompt


def is_machine_marked(text: str, *, in_a_chat: bool) -> bool:
    """The host's mark of a scheduled prompt, outside of any chat that the host has bound."""
    return not in_a_chat and text.startswith(_MACHINE_MARKERS)


def nobody(why: str) -> Principal:
    return Principal(None, "", "", Role.GUEST, Evidence.NONE, why)


def _principal(tx: Tx, account: Account, evidence: Evidence) -> Principal:
    row = tx.person_by_account(platform=account.platform, sender_id=account.sender_id)
    if row is None:
        return Principal(account, account.key, "", None, evidence)
    return Principal(account, str(row["person_id"]), str(row["name"]), Role(row["role"]), evidence)


MACHINE = Principal(CRON, "cron", "the operator's automation", Role.OWNER, Evidence.MACHINE)
TRUSTED = Principal(None, "", "an unidentified call", Role.OWNER, Evidence.TRUSTED)
AMBIGUOUS = "two people could have made it"


@dataclass(slots=True)
class Call:
    """One tool call that `pre_tool_call` let through and that may still be running."""

    tool: str
    command: str
    by_grant: bool = False
    began_at: float = 0.0


@dataclass(slots=True)
class Turn:
    """What this process knows of one running turn; kept in memory, guarded by the resolver."""

    turn_id: str
    session_id: str
    task_id: str
    account: Account | None
    why: str = ""
    evidence: Evidence = Evidence.TURN
    cause: Account | None = None           # of a subagent: whose turn started it
    others: set[Account] = field(default_factory=set)  # whose words were folded into it
    dropped: set[str] = field(default_factory=set)     # senders whose words were kept out of it
    own_text: str = ""
    block: str = ""
    direct: bool = False
    origin: str = ""
    resumes: dict[str, str] = field(default_factory=dict)  # nonce -> the plugin's words for it
    answer: str | None = None
    calls: list[Call] = field(default_factory=list)

    def let_in(self, account: Account, block: str) -> None:
        """Another person's words are in this turn; its notes are nobody's any more."""
        self.others.add(account)
        self.block = block


# -- evidence to principal ---------------------------------------------------------------------

_VARIABLES = ("PLATFORM", "USER_ID", "USER_NAME", "CHAT_ID", "CHAT_TYPE", "THREAD_ID")
MAX_TURNS = 1024
MAX_LINKS = 1024
MAX_LINKED = 64            # calls waiting for their handler under one key
MAX_OWN_TEXT = 8000        # of a turn's message, kept in memory to find it again in a request
STALE_S = 300.0            # a call whose end nobody reported is over by then


def bound_sender(context: contextvars.Context) -> tuple[bool, Sender | None]:
    """Whether the host bound a platform in `context`, and the sender it bound.

    Read by variable name because 0.22 passes no `source` to command handlers (seen on 0.22.2).
    An unset variable holds a private object of the host's, so anything but text counts as unset.
    A platform without a user id is nobody.
    """
    bound: dict[str, str] = {}
    for variable in context:
        name = variable.name.removeprefix("HERMES_SESSION_")
        value = context[variable]
        if name in _VARIABLES and name != variable.name and isinstance(value, str):
            bound[name] = value
    platform, user_id = bound.get("PLATFORM", ""), bound.get("USER_ID", "")
    if not platform or not user_id:
        return bool(platform), None
    return True, Sender(Account(platform, user_id), bound.get("USER_NAME", ""),
                        bound.get("CHAT_ID", ""), bound.get("CHAT_TYPE", ""),
                        bound.get("THREAD_ID", ""))


def host_id(value: object) -> str:
    """An id from the host: anything but text counts as none."""
    return value if isinstance(value, str) else ""


def sender_of_source(source: object) -> Sender | None:
    """The sender a host's source names (an object on 0.23, a plain dict at admission)."""
    def value(key: str) -> str:
        found = source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)
        found = getattr(found, "value", found)  # the platform is an enum on an object
        return found if isinstance(found, str) else "" if found is None else str(found)

    platform, user_id = value("platform"), value("user_id")
    if not platform or not user_id:
        return None
    return Sender(Account(platform, user_id), value("user_name"), value("chat_id"),
                  value("chat_type"), value("thread_id"))


@dataclass(slots=True)
class _Waiting:
    """Calls of one key that wait for their handler, as (account, turn id, instant).

    Once two people have met here, every handler is nobody's until all of them have come: which one
    is whose can never be told apart again.
    """

    calls: list[tuple[Account | None, str, float]] = field(default_factory=list)
    mixed: bool = False

    def add(self, account: Account | None, turn_id: str, now: float) -> None:
        self._forget_stale(now)
        self.calls.append((account, turn_id, now))
        self.mixed = self.mixed or len({who for who, _, _ in self.calls}) > 1
        if len(self.calls) > MAX_LINKED:
            self.calls.pop(0)
            self.mixed = True

    def take(self, now: float) -> tuple[bool, Account | None]:
        self._forget_stale(now)
        if not self.calls:
            return False, None
        account, _, _ = self.calls.pop(0)
        return True, None if self.mixed else account

    def drop(self, turn_id: str) -> bool:
        """Forget what this turn left behind; True when nothing waits any more."""
        if turn_id:
            self.calls = [call for call in self.calls if call[1] != turn_id]
        return not self.calls

    def _forget_stale(self, now: float) -> None:
        self.calls = [call for call in self.calls if now - call[2] < STALE_S]
        self.mixed = self.mixed and bool(self.calls)


Key = TypeVar("Key")
Value = TypeVar("Value")


def _trim(kept: OrderedDict[Key, Value], most: int) -> None:
    """Let the oldest go."""
    while len(kept) > most:
        kept.popitem(last=False)


class Resolver:
    """Attributes calls. Holds the maps of running turns, links and kernels, bounded."""

    def __init__(self, *, uid: str, settings: Callable[[], Settings],
                 monotonic: Callable[[], float]) -> None:
        """`uid` is this process's user id as text, or a fixed word where there is none."""
        self._settings = settings
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._last_turns: OrderedDict[str, Turn] = OrderedDict()  # of each session
        self._loose: OrderedDict[str, Turn] = OrderedDict()       # calls of turns nobody mapped
        self._links: OrderedDict[tuple[str, str, str, str], _Waiting] = OrderedDict()
        self._kernels: OrderedDict[str, set[Account]] = OrderedDict()
        self._owners: set[Account] = set()
        self._gateway_seen = False
        self.seat = Account("cli", f"uid:{uid}")

    # -- people

    def principal(self, tx: Tx, account: Account, evidence: Evidence) -> Principal:
        """What this account is on the roster right now."""
        if account == CRON:
            return MACHINE
        if account == self.seat and self._settings().local_seat_policy == "operator":
            return Principal(account, account.key, "the terminal", Role.OWNER, Evidence.SEAT)
        who = tx.remembered(("principal", account, evidence),
                            lambda: _principal(tx, account, evidence))
        self._remember(tx, account, owner=who.role is Role.OWNER)
        return who

    def _remember(self, tx: Tx, account: Account, *, owner: bool) -> None:
        """Who is an owner, for when the store fails: never before the file says so for good."""
        if not owner:
            self._owners.discard(account)
        elif account not in self._owners:
            tx.after_commit.append(lambda: self._owners.add(account))

    def is_known_owner(self, account: Account | None) -> bool:
        """An owner whom this process has identified before; for when the store fails."""
        if account is None:
            return False
        trusted_seat = (account == self.seat
                        and self._settings().local_seat_policy == "operator")
        return trusted_seat or account == CRON or account in self._owners

    def account_of_turn_start(self, platform: str, sender_id: str, *,
                              marked: bool = False) -> Account | None:
        """Whose turn begins, by what `pre_llm_call` alone receives; None is nobody.

        0.22 gives the terminal and cron an empty sender id, 0.23 gives the terminal `uid:<uid>`
        and cron a text that begins with a marker (`marked`). A marker with a sender is nothing.
        """
        if marked and not sender_id and platform not in ("cli", "subagent"):
            return CRON
        if platform not in ("cli", "cron", "subagent") or (sender_id and platform != "cli"):
            self._gateway_seen = True
        if sender_id:
            return Account(platform, sender_id)
        return {"cli": self.seat, "cron": CRON}.get(platform)

    # -- turns

    def begin(self, turn: Turn) -> None:
        """A turn starts. The one before it in its session has ended, whether it said so or not."""
        turn.own_text = turn.own_text[:MAX_OWN_TEXT]
        with self._lock:
            before = self._last_turns.get(turn.session_id)
            if before is not None and before is not turn:
                before.calls.clear()
                before.own_text = before.block = ""
            for turns, key in ((self._turns, turn.turn_id), (self._last_turns, turn.session_id)):
                turns[key] = turn
                _trim(turns, MAX_TURNS)

    def turn(self, turn_id: str) -> Turn | None:
        with self._lock:
            return self._turns.get(turn_id) if turn_id else None

    def new_request(self, turn_id: str) -> None:
        """The turn asks its model again, so none of its earlier calls is still in flight."""
        with self._lock:
            for turns in (self._turns, self._loose):
                turn = turns.get(turn_id)
                if turn is not None:
                    turn.calls.clear()
            for key in [k for k, waiting in self._links.items() if waiting.drop(turn_id)]:
                del self._links[key]

    def begin_call(self, turn: Turn, call: Call) -> None:
        """A call was let through; an unmapped turn's counts too, or another would look alone."""
        call.began_at = self._monotonic()
        with self._lock:
            if turn.turn_id not in self._turns:
                turn = self._loose.setdefault(turn.turn_id, turn)
                _trim(self._loose, MAX_TURNS)
            turn.calls.append(call)
            if call.tool == "execute_code" and turn.account is not None:
                self._kernels.setdefault(turn.task_id, set()).add(turn.account)
                _trim(self._kernels, MAX_TURNS)

    def in_flight(self, matches: Callable[[Call], bool], *,
                  within_s: float = STALE_S) -> list[tuple[Turn, Call]]:
        """Calls that were let through in this time and that no later request has ended."""
        since = self._monotonic() - within_s
        with self._lock:
            turns = [*self._turns.values(), *self._loose.values()]
            return [(turn, call) for turn in turns for call in turn.calls
                    if call.began_at >= since and matches(call)]

    def use_up(self, call: Call) -> bool:
        """True once for a call that a grant let through: its approval answers one prompt."""
        with self._lock:
            first, call.by_grant = call.by_grant, False
            return first

    def kernel_users(self, task_id: str) -> frozenset[Account]:
        """Who has run code in this task's kernel, which outlives their turns."""
        with self._lock:
            return frozenset(self._kernels.get(task_id, ()))

    def adopt(self, tx: Tx, *, parent_turn_id: str, child_session_id: str, now: float) -> None:
        """Write down which turn started a subagent (the host's `subagent_start`)."""
        parent = self.turn(parent_turn_id)
        cause = None if parent is None else parent.account or parent.cause
        if parent is not None and cause is not None and child_session_id:
            tx.record_lineage(session_id=child_session_id, account=cause.key, chat=parent.origin,
                              now=now)

    # -- calls

    def of_turn(self, tx: Tx, turn: Turn) -> Principal:
        if turn.account is not None:
            return self.principal(tx, turn.account, turn.evidence)
        if turn.evidence is Evidence.SUBAGENT:
            return self._of_child(tx, turn.cause)
        return self._unknown(turn.why)

    def _of_child(self, tx: Tx, cause: Account | None) -> Principal:
        """A subagent's call: its causer's as they are now, or nobody's, as the setting says."""
        if self._settings().subagent_policy != "inherit":
            return nobody("subagents are held to what a guest may use; the operator's setting "
                          "subagent_policy: inherit changes that")
        if cause is None:
            return nobody("it came from a subagent, and which turn started that is not known")
        return self.principal(tx, cause, Evidence.SUBAGENT)._replace(via_subagent=True)

    def of_call(self, tx: Tx, *, turn_id: str, session_id: str,
                task_id: str) -> tuple[Principal, Turn | None]:
        """Whom a hook's or middleware's call belongs to, and its turn where one is known."""
        turn = self.turn(turn_id)
        if turn is not None:
            return self.of_turn(tx, turn), turn
        if not turn_id and not session_id and task_id:
            return self._of_nested_call(tx, task_id)
        return self._of_session(tx, session_id), None

    def _of_nested_call(self, tx: Tx, task_id: str) -> tuple[Principal, Turn | None]:
        """A tool called from inside `execute_code` carries its task's id and nothing else."""
        running = {turn.turn_id: turn for turn, call in
                   self.in_flight(lambda call: call.tool == "execute_code")
                   if turn.task_id == task_id}
        if len(running) != 1:
            return self._unknown(
                AMBIGUOUS if running else "no execute_code is running where it came from",
                frees=not self._is_of_child(task_id)), None
        turn = next(iter(running.values()))
        who = self.of_turn(tx, turn)
        return (who._replace(evidence=Evidence.CODE) if who.is_identified else who), turn

    def _of_session(self, tx: Tx, session_id: str) -> Principal:
        """A turn nobody mapped (the host's own review): the only person who ever spoke there."""
        if not session_id:
            return self._unknown("it named no session")
        lineage = tx.lineage(session_id=session_id)
        if lineage is not None:
            return self._of_child(
                tx, Account.of_key(str(lineage["account"])))._replace(background=True)
        speakers = [self.principal(tx, Account.of_key(key), Evidence.SESSION)
                    for key in tx.speakers(session_id=session_id)]
        if len({who.person_id for who in speakers}) != 1:
            return self._unknown(AMBIGUOUS if speakers else "nobody has spoken in its session",
                                 frees=not self._is_of_child(session_id))
        return speakers[0]._replace(evidence=Evidence.SESSION, background=True)

    def _is_of_child(self, session_or_task: str) -> bool:
        with self._lock:
            return any(turn.evidence is Evidence.SUBAGENT
                       and session_or_task in (turn.session_id, turn.task_id)
                       for turn in self._turns.values())

    def _unknown(self, why: str, *, frees: bool = True) -> Principal:
        if frees and self._settings().unknown_session_policy == "operator":
            return TRUSTED
        return nobody(why)

    # -- tool handlers of ours

    def link(self, key: tuple[str, str, str, str], account: Account | None,
             turn_id: str = "") -> None:
        """Attribute the handler call that follows: (session, task, tool, arguments' digest).

        A call of nobody's is linked as well, or it could use up the link of somebody else's.
        """
        now = self._monotonic()
        with self._lock:
            self._links.setdefault(key, _Waiting()).add(account, turn_id, now)
            _trim(self._links, MAX_LINKS)

    def unlink(self, key: tuple[str, str, str, str]) -> tuple[bool, Account | None]:
        """(was linked, to whom); used up by this. Two people under one key are nobody."""
        now = self._monotonic()
        with self._lock:
            waiting = self._links.get(key)
            linked, account = (False, None) if waiting is None else waiting.take(now)
            if waiting is not None and not waiting.calls:
                del self._links[key]
            return linked, account

    def of_handler(self, tx: Tx, *, session_id: str, task_id: str, tool: str,
                   args_digest: str) -> Principal:
        """Whom a call of one of our own tools belongs to. The host hands it no turn id."""
        linked, account = self.unlink((session_id, task_id, tool, args_digest))
        if linked:
            return (nobody(AMBIGUOUS) if account is None
                    else self.principal(tx, account, Evidence.LINK))
        with self._lock:
            turns = [t for t in self._turns.values() if task_id and t.task_id == task_id]
        if len(turns) == 1 and task_id != session_id:
            who = self.of_turn(tx, turns[0])
            return who._replace(evidence=Evidence.TASK) if who.is_identified else who
        return self._of_session(tx, session_id)

    # -- commands

    def see_gateway(self) -> None:
        self._gateway_seen = True

    @property
    def has_gateway(self) -> bool:
        """True once this process has shown any sign of being a gateway."""
        return self._gateway_seen

    def of_command(self, tx: Tx, sender: Sender | None, *, bound: bool) -> Principal:
        """Whom a typed `/many` belongs to; `bound` when the host named a platform for it."""
        if bound and (sender is None or sender.account != self.seat):
            self._gateway_seen = True
        if sender is not None:
            return self.principal(tx, sender.account, Evidence.CONTEXT)
        if bound or self._gateway_seen:
            return Principal(None, "", "", None, Evidence.NONE, "the platform named no sender")
        return self.principal(tx, self.seat, Evidence.SEAT)


# -- standing ----------------------------------------------------------------------------------


def role_subject(role: Role) -> str:
    return f"@{role.value}"


def mode_of(tx: Tx, settings: Settings) -> Mode:
    """The stored mode; `paused` is the mode of a store in which no verb has set one."""
    stored = tx.setting(key="mode")
    if stored is None:
        return Mode.PAUSED if settings.paused else Mode.NORMAL
    return Mode(stored) if stored in list(Mode) else Mode.LOCKED


def budget_of(tx: Tx, *, person_id: str, role: Role) -> int:
    """Tokens a day; 0 is unlimited. A person's own figure, else the role's default."""
    row = tx.person(person_id=person_id)
    if row is not None and row["budget"] is not None:
        return int(row["budget"])
    default = tx.setting(key=f"budget {role_subject(role)}")
    return int(default) if default is not None and default.isdecimal() else 0


def is_over_budget(tx: Tx, *, person_id: str, role: Role, now: float) -> bool:
    if not is_governed(role):
        return False
    budget = rights_of(tx, person_id=person_id, role=role).budget
    return budget > 0 and tx.tokens_on(person_id=person_id, day=day_of(now)) >= budget


def lists_of(tx: Tx, *, subject: str, role: Role) -> tuple[ToolLists, ToolLists]:
    """A person's own tool lines and their role's."""
    rows = tx.rules(subject=subject, role_subject=role_subject(role))
    own = [(str(r["tool"]), str(r["effect"])) for r in rows if r["subject"] == subject]
    of_role = [(str(r["tool"]), str(r["effect"])) for r in rows if r["subject"] != subject]
    return ToolLists.of(own), ToolLists.of(of_role)


class Rights(NamedTuple):
    """What the roster alone says about what somebody may do; all of it is `remembered`."""

    own: ToolLists
    of_role: ToolLists
    budget: int


def rights_of(tx: Tx, *, person_id: str, role: Role) -> Rights:
    """A person's and their role's; an empty id is somebody without lines of their own."""
    return tx.remembered(("rights", person_id, role), lambda: Rights(
        *lists_of(tx, subject=person_id, role=role),
        budget_of(tx, person_id=person_id, role=role)))


def standing_of(tx: Tx, who: Principal, settings: Settings, *, now: float) -> Standing:
    """All that a decision about this principal depends on, as of now."""
    mode = mode_of(tx, settings)
    if who.role is None or not who.is_identified:
        role = who.role or Role.BLOCKED
        return Standing(role, of_role=rights_of(tx, person_id="", role=role).of_role, mode=mode,
                        identified=False, may_ask=False, on_roster=who.role is not None,
                        approval_tools=settings.approval_tools)
    if not is_governed(who.role):
        return Standing(who.role, mode=mode)
    rights = rights_of(tx, person_id=who.person_id, role=who.role)
    over = mode is not Mode.PAUSED and is_over_budget(
        tx, person_id=who.person_id, role=who.role, now=now)
    return Standing(who.role, rights.own, rights.of_role, mode, over, True, not who.background,
                    settings.approval_tools)


def until_midnight(now: float) -> str:
    """When a day's budget starts afresh, for a sentence."""
    left = int(DAY_S - now % DAY_S)
    return f"at 00:00 UTC, in {left // 3600} h {left % 3600 // 60} min"


# -- admission ---------------------------------------------------------------------------------

MAX_WRONG_CODES = 5
LOCKOUT_S = 600.0
REFUSAL_EVERY_S = 60.0
MAX_WINDOWS = 10_000
CLAIM_TTL_S = 600.0

UNCLAIMED = ("This bot has no owner yet, so it answers nobody. Whoever runs it claims it like "
             "this: type /many claim in a terminal of the bot's own machine (hermes chat), then "
             "type the line it prints here in this chat.")
INVITE_ONLY = ("This bot is private. If its owner gave you an invite code, send it alone in a "
               "message: join CODE")
CLOSED = "This bot is private and takes no new people. Nothing of your message was used."
IS_BLOCKED = "This account is blocked here. Only the bot's owner can change that."
BUDGET_USED = "Today's token budget is used up, so this message was not answered. It starts afresh "
WRONG_CODE = ("That code is not valid here: it may be mistyped, used, replaced or expired. "
              "Ask for a new one.")
KEPT_CODE = "You are already on the roster, as {role}; the code was not used."
# How a door's answer begins; what such an answer was given to is kept out of later requests.
DOOR_ANSWERS = (UNCLAIMED, INVITE_ONLY, CLOSED, IS_BLOCKED, WRONG_CODE, "Too many wrong codes.")
STORE_DOWN = ("The bot cannot reach its records right now, so it cannot tell who may do what. "
              "Nothing was run. Please try again later; if this goes on, whoever runs the bot "
              "finds the reason in its log.")

A_ROLE: Mapping[Role, str] = {Role.OWNER: "an owner", Role.MEMBER: "a member",
                              Role.GUEST: "a guest", Role.BLOCKED: "blocked"}

# What may stand before typed words: the host's `[Name] ` of a shared group, then a mention.
MENTIONED = r"\s*(?:\[[^\n]{0,200}?\]\s+)?(?:<?@[^\s>]{1,64}>?[:,]?\s+)?"
# The second group is the code's second half where somebody put a blank in its middle.
_JOIN = re.compile(
    MENTIONED + r"join(?::\s*|\s+)(\S{4,40}(?:\s+\w{5}\W{0,3})?)\s*", re.IGNORECASE)


def join_code(text: str) -> str | None:
    """The code of a message that is `join CODE` and nothing else, but for a mention before it.

    The host's `[Name] ` of a shared group is skipped, never read.
    """
    if len(text) > 400:
        return None
    match = _JOIN.fullmatch(unicodedata.normalize("NFKC", text))
    return match.group(1) if match else None


class Ending(StrEnum):
    """Why a message starts no turn of the model."""

    UNCLAIMED = "unclaimed"
    NOT_ADMITTED = "not admitted"
    BLOCKED = "blocked"
    OVER_BUDGET = "over budget"
    JOIN = "join"
    JOINED = "joined"
    COMMAND = "host command"
    QUESTION = "somebody else's question"


class Verdict(NamedTuple):
    """A door's answer: who may go on, or the text that ends the message instead.

    `news` is what owners are told. `quiet_again` marks a refusal of which a stranger hears at
    most one a minute.
    """

    who: Principal
    ending: Ending | None = None
    text: str = ""
    news: str = ""
    quiet_again: bool = False


def admit(tx: Tx, resolver: Resolver, sender: Sender, text: str, settings: Settings, *,
          now: float) -> Verdict:
    """The one admission decision, made at both doors. May add a person or raise a guest."""
    who = resolver.principal(tx, sender.account, Evidence.SOURCE)
    if who.evidence in (Evidence.SEAT, Evidence.MACHINE):
        return Verdict(who)
    if not tx.has_owner():
        return Verdict(who, Ending.UNCLAIMED, UNCLAIMED, quiet_again=True)
    if who.role is Role.BLOCKED:
        return Verdict(who, Ending.BLOCKED, IS_BLOCKED, quiet_again=True)
    code = join_code(text)
    if code is not None and (who.role is None or looks_like_secret(code)):
        return _join(tx, resolver, sender, who, code, settings, now=now)
    if who.role is None:
        return _stranger(tx, resolver, sender, who, settings, now=now)
    paused = mode_of(tx, settings) is Mode.PAUSED
    if not paused and is_over_budget(tx, person_id=who.person_id, role=who.role, now=now):
        return Verdict(who, Ending.OVER_BUDGET, f"{BUDGET_USED}{until_midnight(now)}.")
    return Verdict(who)


def _stranger(tx: Tx, resolver: Resolver, sender: Sender, who: Principal, settings: Settings, *,
              now: float) -> Verdict:
    if settings.unknown_sender_policy == "open":
        person = add_person(tx, resolver, sender, Role.GUEST, joined_by="open door", now=now)
        return Verdict(person, news=f"{person.name} ({shown(sender.account.key, 80)}) wrote for "
                                    "the first time and has become a guest (the door is open).")
    text = CLOSED if settings.unknown_sender_policy == "closed" else INVITE_ONLY
    return Verdict(who, Ending.NOT_ADMITTED, text, quiet_again=True)


def _join(tx: Tx, resolver: Resolver, sender: Sender, who: Principal, code: str,
          settings: Settings, *, now: float) -> Verdict:
    if who.role is not None and who.role is not Role.GUEST:
        return Verdict(who, Ending.JOIN, KEPT_CODE.format(role=A_ROLE[who.role]))
    if settings.unknown_sender_policy == "closed":
        return Verdict(who, Ending.NOT_ADMITTED, CLOSED, quiet_again=True)
    wait = locked_out(tx, sender.account, now=now)
    if wait:
        return Verdict(who, Ending.NOT_ADMITTED, wait, quiet_again=True)
    invite = _matching(tx.live_invites(now=now), code)
    if invite is None:
        return Verdict(who, Ending.JOIN, wrong_code(tx, sender.account, now=now))
    role = Role(invite["role"])
    if who.role is not None and not is_raise(who.role, role):
        return Verdict(who, Ending.JOIN, KEPT_CODE.format(role=A_ROLE[who.role]))
    if role not in GRANTABLE_BY_INVITE or not tx.redeem_invite(
            invite_id=int(invite["invite_id"]), redeemed_by=sender.account.key, now=now):
        return Verdict(who, Ending.JOIN, wrong_code(tx, sender.account, now=now))
    return _welcome(tx, resolver, sender, who, role, now=now)


def _welcome(tx: Tx, resolver: Resolver, sender: Sender, who: Principal, role: Role, *,
             now: float) -> Verdict:
    if who.role is None:
        person = add_person(tx, resolver, sender, role, joined_by="invite", now=now)
    else:
        change_role(tx, who.person_id, role, by="invite", now=now)
        person = who._replace(role=role)
    return Verdict(
        person, Ending.JOINED,
        f"Welcome, {person.name}. You have joined as a {role.value}. Just write what you need; "
        "/many whoami shows what you may use and /many help lists your commands.",
        news=f"{person.name} ({shown(sender.account.key, 80)}) joined as a {role.value}.")


def add_person(tx: Tx, resolver: Resolver, sender: Sender, role: Role, *, joined_by: str,
               now: float) -> Principal:
    """Put an account on the roster under a free name; the row is in the audit."""
    account = sender.account
    name = free_name(tx, sender.name, role=role)
    tx.add_person(person_id=account.key, platform=account.platform, sender_id=account.sender_id,
                  name=name, name_key=name_key(name), role=role.value, joined_by=joined_by, now=now)
    tx.record(now=now, kind="policy", event="joined", person_id=account.key,
              detail=f"as {role.value} by {joined_by}, named {name}")
    return resolver.principal(tx, account, Evidence.SOURCE)


def change_role(tx: Tx, person_id: str, role: Role, *, by: str, now: float) -> None:
    """Set a role; what was asked or granted under the old one ends with it."""
    tx.set_role(person_id=person_id, role=role.value)
    tx.end_asks(person_id=person_id, now=now)
    if role is not Role.OWNER:
        tx.drop_invites(made_by=person_id)
    tx.record(now=now, kind="policy", event="role", person_id=person_id,
              detail=f"now {role.value}, by {by}")


def locked_out(tx: Tx, account: Account, *, now: float) -> str:
    """The sentence for a sender with too many wrong codes; empty for anybody else.

    Asked before any comparison: a right code during a lockout is refused too.
    """
    wrong = tx.attempts_since(account=account.key, since=now - LOCKOUT_S)
    if len(wrong) < MAX_WRONG_CODES:
        return ""
    left = wrong[-MAX_WRONG_CODES] + LOCKOUT_S - now
    return (f"Too many wrong codes. Try again in {max(1, -(-int(left) // 60))} minutes; "
            "until then no code is looked at.")


def wrong_code(tx: Tx, account: Account, *, now: float) -> str:
    """Count a wrong code and say so."""
    tx.add_attempt(account=account.key, now=now, keep_s=LOCKOUT_S)
    tx.record(now=now, kind="refusal", event="wrong code", person_id=account.key)
    return locked_out(tx, account, now=now) or WRONG_CODE


def mint_invite(tx: Tx, *, role: Role, made_by: str, ttl_s: float, draw: Draw, now: float) -> str:
    """A new single-use code; only its hash is kept."""
    code = draw(SECRET_LENGTH)
    tx.add_invite(code_hash=digest(code), role=role.value, made_by=made_by, now=now,
                  expires_at=now + ttl_s)
    return spaced_code(code)


def mint_claim(tx: Tx, *, draw: Draw, now: float) -> str:
    """A new claim code for ten minutes; an earlier one stops working."""
    code = draw(SECRET_LENGTH)
    tx.put_claim(code_hash=digest(code), now=now, expires_at=now + CLAIM_TTL_S)
    return spaced_code(code)


def claim(tx: Tx, resolver: Resolver, sender: Sender, code: str, *, now: float) -> Verdict:
    """Make the account that typed a live claim code an owner."""
    who = resolver.principal(tx, sender.account, Evidence.CONTEXT)
    if who.role is Role.BLOCKED:
        return Verdict(who, Ending.BLOCKED, IS_BLOCKED)
    if who.is_owner:
        return Verdict(who, Ending.JOIN, KEPT_CODE.format(role=A_ROLE[Role.OWNER]))
    wait = locked_out(tx, sender.account, now=now)
    if wait:
        return Verdict(who, Ending.NOT_ADMITTED, wait)
    row = _matching(tx.live_claims(now=now), code)
    if row is None or not tx.use_claim(code_hash=str(row["code_hash"]), now=now):
        return Verdict(who, Ending.JOIN, wrong_code(tx, sender.account, now=now))
    if who.role is None:
        person = add_person(tx, resolver, sender, Role.OWNER, joined_by="claim", now=now)
    else:
        change_role(tx, who.person_id, Role.OWNER, by="claim", now=now)
        person = resolver.principal(tx, sender.account, Evidence.CONTEXT)
    return Verdict(person, Ending.JOINED,
                   f"Welcome, {person.name}: this account owns the bot from now on. Next: /many "
                   "invite. /many whoami tells you whenever something is wrong.",
                   news=f"{person.name} ({shown(sender.account.key, 80)}) claimed the bot and is "
                        "an owner now. If that was not you or yours: /many remove, then look at "
                        "/many audit all.")


# -- strangers who keep writing ----------------------------------------------------------------


@dataclass(slots=True)
class _Window:
    began_at: float
    count: int = 1


class Doorstep:
    """At most one refusal a minute for each sender, and two audit rows for it, not one a message.

    The counts live in memory, so that a flood costs the file nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()  # oldest first

    def is_quiet(self, account: Account, ending: Ending, *, now: float) -> bool:
        """True while this sender's last such refusal is under a minute old; counts the message."""
        with self._lock:
            window = self._windows.get((account.key, ending.value))
            if window is None or not 0 <= now - window.began_at < REFUSAL_EVERY_S:
                return False
            window.count += 1
            return True

    def refused(self, account: Account, ending: Ending, *, now: float) -> None:
        """A refusal was given and written down; a new window begins."""
        with self._lock:
            self._windows.pop((account.key, ending.value), None)
            self._windows[account.key, ending.value] = _Window(now)
            _trim(self._windows, MAX_WINDOWS)

    def take_closed(self, *, now: float, all_of_them: bool = False) -> list[tuple[str, int]]:
        """(account key, messages) of every window that is over and had more than one message."""
        closed: list[tuple[str, int]] = []
        with self._lock:
            while self._windows:
                key, window = next(iter(self._windows.items()))
                if not all_of_them and 0 <= now - window.began_at < REFUSAL_EVERY_S:
                    break
                del self._windows[key]
                if window.count > 1:
                    closed.append((key[0], window.count))
        return closed

    def put_back(self, closed: list[tuple[str, int]]) -> None:
        """These could not be written down; the next look at closed windows finds them again."""
        with self._lock:
            for key, count in closed:
                self._windows[key, ""] = _Window(float("-inf"), count)
                self._windows.move_to_end((key, ""), last=False)
