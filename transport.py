"""An ask's life: park, prompt, answer, notice; and the host's approval transport.

Owns how a call that needs an owner is parked under a code, what an owner reads (the one renderer of
a prompt), and what an answer does. Nothing here waits for a human but `HostTransport.present`,
which the host runs on a thread of its own. Only a verb that a human typed can approve: no tool,
hook or prompt leads to `Desk.approve`.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from .identity import (
    ASK_CODE_LENGTH,
    Account,
    Call,
    Draw,
    Principal,
    Resolver,
    Sender,
    Turn,
    has_hidden,
    mode_of,
    normal_code,
    shown,
    shown_lines,
)
from .policy import Mode, Role, Settings, may_approve
from .prompt import ANSWER_HEAD, notice_text, resume_words
from .store import Row, Store, StoreError, Tx, digest

log = logging.getLogger(__name__)

SHOWN_WITHIN_S = 600.0      # an ask nobody has seen by then has had its chance
PROMPTS_PER_WINDOW = 5
PROMPT_WINDOW_S = 600.0
ALARM_EVERY_S = 600.0
RESEND_AFTER_S = 5.0
MAX_ASK_CHARS = 1_000_000   # of the arguments' canonical form
WHOLE_FOR_S = 3600.0        # long arguments are kept whole for so long after their ask has ended
NOTHING_HERE = "There is nothing here for you."
MAX_REASON = 300
MAX_HOST_WAITING = 5        # the host has eight workers; the sixth waiting call would fill them
POLL_S = 0.5
PATIENCE_S = 0.5            # with a busy store, where the host's own time is running

# Platforms whose private chat has the person's own id, so that a DM needs no earlier message.
DIRECT_BY_ID = frozenset({"telegram", "whatsapp", "signal", "sms", "email"})


# -- arguments in one canonical form -----------------------------------------------------------


class Arguments(NamedTuple):
    """A call's arguments as they were when they were judged: canonical JSON and its digest.

    Key order does not matter; `1`, `1.0`, `true`, `"1"`, a missing and a null key all differ.
    """

    text: str
    digest: str

    @classmethod
    def of(cls, args: object) -> Arguments:
        text = _canonical(_plain(args))
        return cls(text, digest(text))


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _plain(value: object) -> object:
    """JSON's own types as they are; anything else as a tagged text that equals nothing else."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"\0{type(key).__name__} {key!r}": _plain(item)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return {"\0type": f"{type(value).__name__} {value!r}"}


# -- what an owner reads -----------------------------------------------------------------------

_MARGIN = "| "
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,60}")  # any other argument's name is quoted
_SHORT_VALUE = 240     # characters; a longer value is cut, and stands behind the short ones
_BODY_CHARS = 2000     # what the arguments of a prompt take of a phone's message
_MOST_CHARS = 2600
_BODY_LINES = 60
_LEAST_ROOM = 240
_HEAD_LINES, _TAIL_LINES = 12, 6
_HIDDEN_LINE = "Hidden characters are present; they are written as \\u{...}."


def argument_lines(args_json: str) -> list[str]:
    """Every argument as safe lines, in the order of their names; the rendering is reversible."""
    return [line for _, lines in _arguments(args_json) for line in lines]


def _arguments(args_json: str) -> list[tuple[str, list[str]]]:
    """(the value as text, its safe lines) of every argument, in the order of their names."""
    args = json.loads(args_json)
    if not isinstance(args, dict):
        return [(args_json, [f"arguments = {shown(json.dumps(args, ensure_ascii=False))}"])]
    found = []
    for name, value in args.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        plain = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        found.append((text, _value_lines(shown(plain), value, text)))
    return found or [("", ["(no arguments)"])]


def _value_lines(name: str, value: object, text: str) -> list[str]:
    if not isinstance(value, str):
        return [f"{name} = {shown(text)}"]
    lines = shown_lines(value)
    if len(lines) == 1:
        return [f'{name} = "{lines[0]}"']
    return [f"{name} = text of {len(lines)} lines:", *(f"  {line}" for line in lines)]


def code_block(lines: list[str]) -> str:
    """Untrusted lines in one code block, each with a margin, so that none can pose as ours."""
    return "\n".join(["```", *(f"{_MARGIN}{line}" for line in lines), "```"])


def _fitted(args_json: str) -> tuple[list[str], bool]:
    """(what of the arguments fits a phone, whether that is all of them).

    Short values stand first and whole, so that a long one hides no other; each long one is cut by
    itself, to its head and tail with its true length and a digest.
    """
    short: list[str] = []
    long: list[tuple[str, list[str]]] = []
    for text, lines in _arguments(args_json):
        if len(lines) == 1 and len(lines[0]) <= _SHORT_VALUE:
            short += lines
        else:
            long.append((text, lines))
    room = max(0, _BODY_CHARS - sum(map(len, short)))
    fitted = [_cut(text, lines, room // len(long)) for text, lines in long]
    body = short + [line for lines in fitted for line in lines]
    whole = fitted == [lines for _, lines in long]
    return (body, whole) if len(body) <= _BODY_LINES and sum(map(len, body)) <= _MOST_CHARS else \
        (_first_lines(body), False)


def _cut(text: str, lines: list[str], room: int) -> list[str]:
    printed = "\n".join(lines)
    room = max(room, _LEAST_ROOM)
    if len(printed) <= room and len(lines) <= _HEAD_LINES + _TAIL_LINES:
        return lines
    head = re.sub(r"\\u\{[^}]*$", "", printed[:room * 2 // 3]).split("\n")[:_HEAD_LINES]
    tail = re.sub(r"^[^{}\n]{0,12}\}", "", printed[-room // 3:]).split("\n")[-_TAIL_LINES:]
    left_out = len(printed) - sum(map(len, head)) - sum(map(len, tail))
    return [*head, f"[... about {left_out} characters left out; the whole value has {len(text)}, "
                   f"sha256 {digest(text)[:16]} ...]", *tail]


def _first_lines(lines: list[str]) -> list[str]:
    """So many arguments that not even their cut forms fit: the first of them, and how many more."""
    kept: list[str] = []
    for line in lines[:_BODY_LINES]:
        kept.append(line if len(line) <= _SHORT_VALUE else line[:_SHORT_VALUE] + "…")
        if sum(map(len, kept)) > _BODY_CHARS:
            break
    return [*kept, f"[... {len(lines) - len(kept)} more lines, other arguments among them ...]"]


def _hides_something(args_json: str) -> bool:
    """True when a character that shows nothing or reorders text is in a name or a value."""
    args = json.loads(args_json)
    named = args.items() if isinstance(args, dict) else [("", args)]
    return any(has_hidden(name) or has_hidden(
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
         ).replace("\n", " ")) for name, value in named)


def render_prompt(ask: Row, *, name: str, mode: Mode, now: float) -> str:
    """The approval prompt, the only one: who, which tool, what exactly, the code, how to answer."""
    code, args_json, tool = str(ask["code"]), str(ask["args_json"]), str(ask["tool"])
    who = f"{name} ({shown(str(ask['person_id']), 80)})" if name else "an unidentified call"
    via = f", via {ask['via']}" if ask["via"] else ""
    lines, whole = _fitted(args_json)
    asked = "may this call run?" if ask["kind"] == "tool" else \
        "the host's own check holds this command:"
    notes = [
        "" if whole else f"Not all of it fits here. First read /many show {code}",
        _HIDDEN_LINE if _hides_something(args_json) or has_hidden(tool) else "",
        "Approving lets the tool run with ANY arguments (approval_binding: tool)."
        if ask["binding"] == "tool" and ask["kind"] == "tool" else "",
        "It differs from what was approved before." if ask["differs"] else "",
        f"The bot is {mode.value} right now." if mode is not Mode.NORMAL else "",
        "Allowing execute_code allows everything its code can do, other tools included."
        if tool == "execute_code" else "",
    ]
    return "\n".join([
        f"{ANSWER_HEAD}Approval {code}: {asked}",
        code_block([f"who:  {who}{via}", f"tool: {shown(tool, 100)}", "", *lines]),
        *filter(None, notes),
        f"Approve once: /many approve {code}",
        f"Refuse: /many deny {code} [reason]",
        f"Open for {_span(max(1, round(float(ask['expires_at']) - now)))}."])


def _span(seconds: float) -> str:
    """A duration in the largest unit that reads well."""
    if seconds < 90:
        return f"{round(seconds)} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"


def ago(then: float, now: float) -> str:
    return f"{_span(max(0.0, now - then))} ago"


# -- how far an approval reaches ----------------------------------------------------------------

MAX_GRANT_S = 24 * 3600.0
MAX_USES = 100
_FOR = re.compile(r"([1-9]\d{0,4})([mh])")
_TIMES = re.compile(r"([1-9]\d{0,2})x")


class Terms(NamedTuple):
    """The bounds an owner typed behind a code; none at all is one run within `grant_ttl_s`."""

    for_s: float | None = None
    times: int | None = None
    any_arguments: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Terms | None:
        """From `30m`, `2h`, `3x`, `any`, each at most once, in any order; None when it is not."""
        for_s, times, any_arguments = None, None, False
        for word in map(str.casefold, words):
            if (match := _FOR.fullmatch(word)) and for_s is None:
                for_s = int(match[1]) * (60.0 if match[2] == "m" else 3600.0)
            elif (match := _TIMES.fullmatch(word)) and times is None:
                times = int(match[1])
            elif word == "any" and not any_arguments:
                any_arguments = True
            else:
                return None
        if (for_s or 0) > MAX_GRANT_S or (times or 0) > MAX_USES:
            return None
        return cls(for_s, times, any_arguments)

    def bounds(self, ttl_s: float) -> tuple[int, float]:
        """(uses, seconds): a count without a time ends after 24 h, a time allows 100 runs."""
        if self.for_s is None and self.times is None:
            return 1, ttl_s
        return self.times or MAX_USES, self.for_s or MAX_GRANT_S


ONCE = Terms()


# -- sentences for the asker -------------------------------------------------------------------

class Told(NamedTuple):
    """What a notice became in its chat: the plugin's answer, or words that start a model's turn."""

    answer: str
    resume: str = ""


class Outcome(NamedTuple):
    """What came of a call that needs an owner: it may run, or the sentence that blocks it."""

    runs: bool
    text: str = ""
    ask_id: int = 0
    bound: bool = False  # runs by a grant for exactly these arguments


# -- the desk ----------------------------------------------------------------------------------


class Inject(Protocol):
    """`ctx.inject_message`: on 0.22.2 True proves no delivery, False proves that there is none."""

    def __call__(self, content: str, role: str = ..., *, session_key: str | None = ...,
                 origin: Mapping[str, Any] | None = ...) -> bool: ...


class Desk:
    """Asks, grants and notices in the store."""

    def __init__(self, store: Store, resolver: Resolver, *, settings: Callable[[], Settings],
                 draw: Draw, nonce: Callable[[], str], inject: Inject | None) -> None:
        self._store = store
        self._resolver = resolver
        self._settings = settings
        self._draw = draw
        self._nonce = nonce
        self._inject = inject
        self.answered = threading.Condition()

    # -- parking

    def sweep(self, tx: Tx, *, now: float) -> None:
        """Write down every expiry, so that none is undone later, and let go of long arguments."""
        tx.cut_ended_asks(before=now - WHOLE_FOR_S)
        for row in tx.expire_asks(now=now):
            tx.record(now=now, kind="approval", event="expired", person_id=str(row["person_id"]),
                      tool=str(row["tool"]), code=str(row["code"]))

    def ask(self, tx: Tx, who: Principal, tool: str, args: Arguments, chat: str, *,
            now: float) -> Outcome:
        """Spend a grant for this call, or park it and ask; called inside `pre_tool_call`'s tx."""
        self.sweep(tx, now=now)
        spent = tx.spend_grant(person_id=who.person_id, tool=tool, args_digest=args.digest,
                               now=now)
        if spent is not None:
            tx.record(now=now, kind="approval", event="spent", person_id=who.person_id,
                      tool=tool, code=str(spent["code"]))
            return Outcome(True, bound=spent["binding"] == "arguments")
        refused = self._refused_already(tx, who, tool, args, now=now)
        if refused:
            return Outcome(False, refused)
        waiting = tx.open_ask(person_id=who.person_id, tool=tool)
        if waiting is not None and waiting["args_digest"] == args.digest:
            return self._ask_again(tx, waiting, now=now)
        return self._park(tx, who, tool, args, chat, waiting, now=now)

    def _refused_already(self, tx: Tx, who: Principal, tool: str, args: Arguments, *,
                         now: float) -> str:
        """A deny stands for a while, and an owner is asked only so often."""
        if len(args.text) > MAX_ASK_CHARS:
            return (f"Refused: the arguments of this call of {shown(tool, 100)} are "
                    f"{len(args.text):,} characters long, and an owner is asked about at most "
                    f"{MAX_ASK_CHARS:,}. Nothing was run and nobody was asked. Do it in smaller "
                    "parts.")
        denied = tx.last_denied(person_id=who.person_id, tool=tool, args_digest=args.digest,
                                since=now - self._settings().grant_ttl_s)
        if denied is not None:
            reason = f" Reason given: {denied['reason']}." if denied["reason"] else ""
            return (f"Refused: the owner said no to this call of {shown(tool, 100)} "
                    f"{ago(float(denied['closed_at']), now)}.{reason} Nothing was run and nobody "
                    "was asked again. Tell the person.")
        open_ask = tx.open_ask(person_id=who.person_id, tool=tool)
        repeats = open_ask is not None and open_ask["args_digest"] == args.digest
        wait = 0.0 if repeats else self.asks_too_often(tx, who.person_id, now=now)
        if wait:
            return (f"Refused: the owner has been asked {PROMPTS_PER_WINDOW} times in 10 minutes "
                    f"on this person's behalf. {shown(tool, 100)} was not run and nobody was "
                    f"asked. Try again in {_span(wait)}.")
        return ""

    def asks_too_often(self, tx: Tx, person_id: str, *, now: float) -> float:
        """Seconds until owners may be asked on this person's behalf again; 0.0 is now."""
        prompts = tx.prompts_since(person_id=person_id, since=now - PROMPT_WINDOW_S)
        if len(prompts) < PROMPTS_PER_WINDOW:
            return 0.0
        return max(1.0, prompts[-PROMPTS_PER_WINDOW] + PROMPT_WINDOW_S - now)

    def _ask_again(self, tx: Tx, ask: Row, *, now: float) -> Outcome:
        """The same call while its ask is open: the same code, and no second prompt."""
        for notice in tx.unshown_notices(ask_id=int(ask["ask_id"])):
            if notice["sent_at"] is not None and now - notice["sent_at"] > RESEND_AFTER_S:
                tx.untake_notice(nonce=str(notice["nonce"]))
        tx.record(now=now, kind="approval", event="asked again", person_id=str(ask["person_id"]),
                  tool=str(ask["tool"]), code=str(ask["code"]))
        return Outcome(False, f"Not run: this call of {shown(str(ask['tool']), 100)} is still "
                              "waiting for the owner, who was asked before. Nothing has been run. "
                              "Tell the person and end here.", int(ask["ask_id"]))

    def _park(self, tx: Tx, who: Principal, tool: str, args: Arguments, chat: str,
              waiting: Row | None, *, now: float) -> Outcome:
        owners = self.owner_addresses(tx, but=who.account)
        if not owners:
            tx.record(now=now, kind="approval", event="no owner reachable",
                      person_id=who.person_id, tool=tool)
            return Outcome(False, _unreachable(tool))
        before = tx.last_answered(person_id=who.person_id, tool=tool, args_digest=args.digest)
        granted = tx.live_grant(person_id=who.person_id, tool=tool, now=now)
        if waiting is not None:
            self._supersede(tx, waiting, now=now)
        settings = self._settings()
        ask_id, code = self._file(
            tx, kind="tool", person_id=who.person_id, tool=tool, args=args, via=who.via,
            chat=chat, now=now, differs=granted is not None,
            expires_at=now + SHOWN_WITHIN_S + settings.approval_timeout_s)
        self._notify(tx, owners, kind="ask", ask_id=ask_id, text="", now=now)
        tx.record(now=now, kind="approval", event="asked", person_id=who.person_id, tool=tool,
                  code=code, detail=args.text[:500])
        text = (f"Not run: {shown(tool, 100)} needs the owner's approval. The owner has just been "
                "asked and nothing has been run. Tell the person so and end here; once they hear "
                "that it was approved, make exactly the same call again.")
        if before is not None and before["outcome"] == "expired":
            text += " (An earlier request for this same call expired without an answer.)"
        if waiting is not None:
            text += " (It replaces an earlier request with other arguments.)"
        return Outcome(False, text, ask_id)

    def _supersede(self, tx: Tx, ask: Row, *, now: float) -> None:
        tx.close_ask(ask_id=int(ask["ask_id"]), outcome="superseded", answered_by="", reason="",
                     now=now)
        tx.record(now=now, kind="approval", event="superseded", person_id=str(ask["person_id"]),
                  tool=str(ask["tool"]), code=str(ask["code"]))

    def _file(self, tx: Tx, *, kind: str, person_id: str, tool: str, args: Arguments, via: str,
              chat: str, differs: bool, now: float, expires_at: float) -> tuple[int, str]:
        """(ask id, code) of a new ask under a code that was free for 30 days."""
        code = self._draw(ASK_CODE_LENGTH)
        while tx.code_in_use(code=code, now=now):
            code = self._draw(ASK_CODE_LENGTH)
        ask_id = tx.park(code=code, kind=kind, person_id=person_id, tool=tool,
                         args_json=args.text, args_digest=args.digest,
                         binding=self._settings().approval_binding, differs=differs, via=via,
                         chat=chat, now=now, expires_at=expires_at)
        return ask_id, code

    def file_host(self, tx: Tx, *, person_id: str, tool: str, args: Arguments,
                  owners: list[dict[str, str]], now: float, expires_at: float) -> tuple[int, str]:
        """(ask id, code) of one of the host's own prompts, put before the owners."""
        ask_id, code = self._file(tx, kind="host", person_id=person_id, tool=tool, args=args,
                                  via="", chat="", differs=False, now=now, expires_at=expires_at)
        self._notify(tx, owners, kind="ask", ask_id=ask_id, text="", now=now)
        tx.record(now=now, kind="approval", event="asked", person_id=person_id, tool=tool,
                  code=code, detail=args.text[:500])
        return ask_id, code

    def withdraw(self, ask_id: int, tool: str, *, now: float) -> str:
        """End an ask whose notice no gateway took; the sentence for the asker."""
        with self._store.transaction() as tx:
            ask = tx.ask(ask_id=ask_id)
            if ask is not None and tx.close_ask(ask_id=ask_id, outcome="withdrawn",
                                                answered_by="", reason="", now=now):
                tx.record(now=now, kind="approval", event="no owner reachable",
                          person_id=str(ask["person_id"]), tool=tool, code=str(ask["code"]))
        return _unreachable(tool)

    # -- notices

    def owner_addresses(self, tx: Tx, *, but: Account | None = None) -> list[dict[str, str]]:
        """Where each owner's direct chat is; an owner with no known one is left out."""
        found = []
        for row in tx.owners():
            account = Account(str(row["platform"]), str(row["sender_id"]))
            if account == but:
                continue
            address = tx.address(platform=account.platform, user_id=account.sender_id)
            if address is not None:
                place = {key: str(address[key]) for key in ("chat_id", "chat_type", "thread_id")}
            elif account.platform in DIRECT_BY_ID:
                place = {"chat_id": account.sender_id, "chat_type": "dm", "thread_id": ""}
            else:
                continue
            found.append({"person_id": str(row["person_id"]), "platform": account.platform,
                          "user_id": account.sender_id, **place})
        return found

    def learn_address(self, tx: Tx, who: Principal, sender: Sender, *, now: float) -> None:
        """Where this owner can be asked: the direct chat in which they have just spoken."""
        account = sender.account
        if not may_approve(who.role) or not sender.is_direct or not sender.chat_id:
            return
        here = (sender.chat_id, sender.chat_type, sender.thread_id)
        known = tx.address(platform=account.platform, user_id=account.sender_id)
        if known is None or tuple(known) != here:
            tx.learn_address(platform=account.platform, user_id=account.sender_id,
                             chat_id=here[0], chat_type=here[1], thread_id=here[2], now=now)

    def _notify(self, tx: Tx, addresses: list[dict[str, str]], *, kind: str, ask_id: int | None,
                text: str, now: float) -> None:
        for address in addresses:
            tx.add_notice(nonce=self._nonce(), kind=kind, ask_id=ask_id, text=text, now=now,
                          **address)

    def tell_owners(self, tx: Tx, text: str, *, now: float, but: Account | None = None) -> None:
        """News for every owner's direct chat; sent by the process that has a gateway."""
        self._notify(tx, self.owner_addresses(tx, but=but), kind="news", ask_id=None,
                     text=text, now=now)

    def _tell_asker(self, tx: Tx, ask: Row, text: str, *, resume: bool, now: float) -> None:
        """The outcome for the chat in which this was asked, and there the call once more."""
        chat = _chat_of(ask)
        if chat is None:
            return
        address = {"person_id": str(ask["person_id"]), **chat}
        kinds = [("outcome", text), ("resume", "")] if resume else [("outcome", text)]
        for kind, said in kinds:
            self._notify(tx, [address], kind=kind, ask_id=int(ask["ask_id"]), text=said, now=now)

    def read_notice(self, tx: Tx, nonce: str, who: Principal, chat_id: str, *,
                    now: float) -> Told | None:
        """What a notice that came back in its own chat says; None when it is only somebody typing.

        `chat_id` is the chat the host bound for this turn, "" when it bound none of this sender's.
        Uses the nonce up. Seeing a prompt for the first time starts its ask's clock.
        """
        notice = tx.notice(nonce=nonce)
        if notice is None or who.account is None or (chat_id and chat_id != notice["chat_id"]) \
                or not tx.show_notice(nonce=nonce, platform=who.account.platform,
                                      user_id=who.account.sender_id, now=now):
            return None
        self.sweep(tx, now=now)
        ask = tx.ask(ask_id=int(notice["ask_id"] or 0))
        if notice["kind"] == "resume":
            return self._resumed(tx, ask, who)
        return Told(f"{ANSWER_HEAD}{self._notice_text(tx, notice, ask, who, now=now)}")

    def _notice_text(self, tx: Tx, notice: Row, ask: Row | None, who: Principal, *,
                     now: float) -> str:
        if notice["kind"] == "outcome":
            return str(notice["text"]) or NOTHING_HERE
        if not may_approve(who.role):
            return NOTHING_HERE
        if notice["kind"] == "news":
            return str(notice["text"]) or NOTHING_HERE
        if ask is None:
            return "That request has been withdrawn."
        if ask["closed_at"] is not None:
            return self.how_it_ended(tx, ask, now=now)
        return self.prompt(tx, ask, now=now).removeprefix(ANSWER_HEAD)

    def _resumed(self, tx: Tx, ask: Row | None, who: Principal) -> Told:
        """The words that make the asker's own agent call again, while the grant is still open."""
        if ask is None or ask["person_id"] != who.person_id or ask["uses_left"] < 1 \
                or who.role in (None, Role.BLOCKED):
            return Told(f"{ANSWER_HEAD}That approval has ended. Nothing was run.")
        return Told("", resume_words(tool=str(ask["tool"]), args=str(ask["args_json"])))

    def prompt(self, tx: Tx, ask: Row, *, now: float) -> str:
        """The prompt of an open ask, which counts as shown by this."""
        if ask["kind"] == "tool" and tx.show_ask(
                ask_id=int(ask["ask_id"]), now=now,
                expires_at=now + self._settings().approval_timeout_s):
            tx.record(now=now, kind="approval", event="shown", person_id=str(ask["person_id"]),
                      tool=str(ask["tool"]), code=str(ask["code"]))
            ask = tx.ask(ask_id=int(ask["ask_id"])) or ask
        return render_prompt(ask, name=self._name_of(tx, str(ask["person_id"])),
                             mode=mode_of(tx, self._settings()), now=now)

    def take_unsent(self, tx: Tx, *, now: float) -> list[Row]:
        """Claim the notices that wait for a gateway, when this process has one."""
        if not self._resolver.has_gateway or self._inject is None or not tx.has_unsent_notices():
            return []
        return [row for row in tx.unsent_notices(since=now - SHOWN_WITHIN_S)
                if tx.take_notice(nonce=str(row["nonce"]), now=now)]

    def send(self, notices: list[Row]) -> frozenset[int]:
        """Inject claimed notices, outside any transaction; the asks that reached nobody."""
        reached: dict[int, bool] = {}
        for notice in notices:
            sent = self._send_one(notice)
            if notice["ask_id"] is not None:
                ask_id = int(notice["ask_id"])
                reached[ask_id] = reached.get(ask_id, False) or sent
        return frozenset(ask_id for ask_id, sent in reached.items() if not sent)

    def _send_one(self, notice: Row) -> bool:
        origin = {"platform": notice["platform"], "chat_id": notice["chat_id"],
                  "chat_type": notice["chat_type"] or "dm", "user_id": notice["user_id"]}
        if notice["thread_id"]:
            origin["thread_id"] = notice["thread_id"]
        try:
            sent = self._inject is not None and bool(
                self._inject(notice_text(str(notice["nonce"])), "user", origin=origin))
        except Exception:  # the host's own code; the ask is then treated as unsent
            log.warning("manyhands: a notice could not be injected", exc_info=True)
            sent = False
        if not sent:
            log.warning("manyhands: no gateway took a notice for %s:%s; is "
                        "allow_gateway_injection set?", notice["platform"],
                        shown(str(notice["user_id"]), 80))
        return sent

    # -- answers

    def approve(self, tx: Tx, who: Principal, code: str, terms: Terms = ONCE, *,
                now: float) -> str:
        """Open the runs an owner allows of the call that the owner saw; the sentence to say."""
        self.sweep(tx, now=now)
        ask = self._answerable(tx, who, code, now=now)
        if isinstance(ask, str):
            return ask
        if ask["kind"] == "host" and terms != ONCE:
            return f"{ask['code']} is the host's own prompt; it can only be approved once."
        uses, for_s = terms.bounds(self._settings().grant_ttl_s)
        binding = "tool" if terms.any_arguments else str(ask["binding"])
        if not tx.close_ask(ask_id=int(ask["ask_id"]), outcome="approved",
                            answered_by=who.person_id, reason="", now=now,
                            uses=uses if ask["kind"] == "tool" else 0,
                            grant_until=now + for_s, binding=binding):
            return self.how_it_ended(tx, tx.ask(ask_id=int(ask["ask_id"])) or ask, now=now)
        reach = f"{_count(uses)}, {_BINDINGS[binding]}, within {_span(for_s)}"
        tx.record(now=now, kind="approval", event="approved", person_id=str(ask["person_id"]),
                  tool=str(ask["tool"]), code=str(ask["code"]),
                  detail=f"by {who.person_id}: {reach}")
        name, tool = self._name_of(tx, str(ask["person_id"])), shown(str(ask["tool"]), 100)
        if ask["kind"] == "host":
            return f"Approved {ask['code']}: it runs once."
        resume = self._settings().resume_on_approve
        again = "It is made again now." if resume else "Ask for it again to run it."
        self._tell_asker(tx, ask, f"The owner approved {name}'s request for {tool}. {again}",
                         resume=resume, now=now)
        return f"Approved {ask['code']}: {name or 'they'} may run {tool} {reach}."

    def deny(self, tx: Tx, who: Principal, code: str, reason: str, *, now: float) -> str:
        self.sweep(tx, now=now)
        ask = self._answerable(tx, who, code, now=now)
        if isinstance(ask, str):
            return ask
        said = shown(reason, MAX_REASON)
        if not tx.close_ask(ask_id=int(ask["ask_id"]), outcome="denied",
                            answered_by=who.person_id, reason=said, now=now):
            return self.how_it_ended(tx, tx.ask(ask_id=int(ask["ask_id"])) or ask, now=now)
        tx.record(now=now, kind="approval", event="denied", person_id=str(ask["person_id"]),
                  tool=str(ask["tool"]), code=str(ask["code"]),
                  detail=f"by {who.person_id}" + (f": {said}" if said else ""))
        if ask["kind"] == "tool":
            name, tool = self._name_of(tx, str(ask["person_id"])), shown(str(ask["tool"]), 100)
            self._tell_asker(tx, ask, f"The owner said no to {name}'s request for {tool}."
                             + (f" Reason given: {said}" if said else ""), resume=False, now=now)
        return f"Denied {ask['code']}. Nothing was run."

    def revoke(self, tx: Tx, who: Principal, code: str, *, now: float) -> str | None:
        """End what is left of an approval; None when this code has nothing open."""
        self.sweep(tx, now=now)
        ask = tx.ask_by_code(code=normal_code(code))
        if ask is None or not tx.end_grant(ask_id=int(ask["ask_id"])):
            return None
        tx.record(now=now, kind="approval", event="revoked", person_id=str(ask["person_id"]),
                  tool=str(ask["tool"]), code=str(ask["code"]), detail=f"by {who.person_id}")
        return f"Revoked {ask['code']}: what was left of it has ended."

    def grants(self, tx: Tx, *, person_id: str | None, now: float) -> list[Row]:
        """What is open and unspent, of one person or of everybody (None)."""
        self.sweep(tx, now=now)
        return tx.live_grants(person_id=person_id, now=now)

    def _answerable(self, tx: Tx, who: Principal, code: str, *, now: float) -> Row | str:
        """The open ask under this code, or the sentence that says why it cannot be answered."""
        ask = tx.ask_by_code(code=normal_code(code))
        if not may_approve(who.role):
            return self.foreign_code(tx, who, code, now=now)
        if ask is None:
            return f"There is no request {shown(code, 20)}. /many approve lists the open ones."
        if who.person_id == ask["person_id"]:
            return "Nobody answers their own request; another owner has to."
        if ask["closed_at"] is not None:
            if ask["outcome"] in ("approved", "denied"):
                self._alarm(tx, who, f"{ask['code']} was tried again after it was answered.",
                            now=now, but=who.account)
            return self.how_it_ended(tx, ask, now=now)
        return ask

    def foreign_code(self, tx: Tx, who: Principal, code: str, *, now: float) -> str:
        """Somebody who answers no approvals typed a code: nothing changes, the owners are told."""
        tx.record(now=now, kind="refusal", event="foreign code", person_id=who.person_id,
                  code=normal_code(code)[:ASK_CODE_LENGTH])
        name = who.name or "Somebody who is not on the roster"
        self._alarm(tx, who, f"{name} ({shown(who.person_id, 80)}) tried to answer an approval "
                             "code. It changed nothing.", now=now)
        return "Only an owner answers approvals. Nothing was changed, and the owner was told."

    def _alarm(self, tx: Tx, who: Principal, text: str, *, now: float,
               but: Account | None = None) -> None:
        """Tell the owners, at most once in ten minutes per person; the audit counts the rest."""
        key = f"alarm {who.person_id}"
        last = float(tx.setting(key=key) or 0)
        tx.record(now=now, kind="approval", event="alarm", person_id=who.person_id, detail=text)
        if not 0 <= now - last < ALARM_EVERY_S:
            tx.put_setting(key=key, value=repr(now))
            self.tell_owners(tx, text, now=now, but=but)

    def how_it_ended(self, tx: Tx, ask: Row, *, now: float) -> str:
        """Which end a closed ask came to, in words."""
        code, closed = str(ask["code"]), ago(float(ask["closed_at"] or now), now)
        by = self._name_of(tx, str(ask["answered_by"])) or "an owner"
        if ask["outcome"] == "approved" and ask["kind"] == "tool":
            spent = f"it is not spent yet, and /many revoke {code} ends it" \
                if ask["uses_left"] else "it has been spent or ended"
            return f"{code} was already approved {closed} by {by}; {spent}."
        return {
            "approved": f"{code} was already approved {closed} by {by}.",
            "denied": f"{code} was already denied {closed} by {by}.",
            "expired": f"{code} expired {closed}. It has to be asked for again.",
            "superseded": f"{code} was replaced {closed} by a newer request with other arguments.",
        }.get(str(ask["outcome"]), f"{code} was withdrawn {closed}. It has to be asked for again.")

    def _name_of(self, tx: Tx, person_id: str) -> str:
        if person_id == self._resolver.seat.key:
            return "the terminal"
        row = tx.person(person_id=person_id) if person_id else None
        return str(row["name"]) if row is not None else ""

    def wake(self) -> None:
        """An answer was committed; whoever waits in this process looks again."""
        with self.answered:
            self.answered.notify_all()


_BINDINGS = {"arguments": "with exactly these arguments", "tool": "with any arguments"}


def reach_of(grant: Row, *, now: float) -> str:
    """How far an open grant still reaches, in words."""
    return (f"{_count(int(grant['uses_left']))}, {_BINDINGS[str(grant['binding'])]}, for another "
            f"{_span(max(1.0, float(grant['grant_until']) - now))}")


def _count(uses: int) -> str:
    return "once" if uses == 1 else f"{uses} times"


def _chat_of(ask: Row) -> dict[str, str] | None:
    """Where an ask was made, as the address of a notice to its asker; None when unknown."""
    try:
        chat = json.loads(str(ask["chat"]) or "null")
    except ValueError:
        return None
    keys = ("platform", "user_id", "chat_id", "chat_type", "thread_id")
    if not isinstance(chat, dict) or not all(isinstance(chat.get(key), str) for key in keys):
        return None
    return {key: chat[key] for key in keys} if chat["chat_id"] else None


def _unreachable(tool: str) -> str:
    return (f"Refused: {shown(tool, 100)} needs the owner's approval and no owner could be "
            "reached. Nothing was run and nothing is waiting. Tell the person to try later.")


# -- the host's own dangerous-command prompts --------------------------------------------------


class HandBack(Exception):
    """An owner's own call: the host's built-in prompt answers it (`transport_fallback: builtin`).

    Raised on purpose: any failure of a transport falls back, and nothing else does.
    """


def command_of(tool: str, args: object) -> str:
    """What the host's check will name this call by (its tools/approval.py)."""
    given = args if isinstance(args, dict) else {}
    if tool == "execute_code":
        return f"execute_code <<'PY'\n{given.get('code', '')}\nPY"
    command = given.get("command", "")
    return command if isinstance(command, str) else ""


class HostTransport:
    """The approval transport `manyhands`: the host's prompts through the owners' queue."""

    def __init__(self, store: Store, resolver: Resolver, desk: Desk, *,
                 settings: Callable[[], Settings], clock: Callable[[], float],
                 monotonic: Callable[[], float]) -> None:
        self._store = store
        self._resolver = resolver
        self._desk = desk
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._slots = threading.BoundedSemaphore(MAX_HOST_WAITING)

    def present(self, request: Any) -> Any:
        """Answer one request of the host, once or deny, before its own time is over.

        Raises only HandBack, for an owner's own call. Whatever else fails is a deny: the advised
        fallback would put the prompt into the asker's own chat, where the asker could answer it.
        """
        try:
            return request.respond(self._choice(request))
        except HandBack:
            raise
        except Exception:
            log.exception("manyhands: an approval request failed and was denied")
            return request.respond("deny")

    def _choice(self, request: Any) -> str:
        """Decided within the host's own time, a busy store's waits included."""
        limit = float(request.timeout_seconds)
        deadline = self._monotonic() + limit - max(2.0, limit * 0.1)
        matches = self._resolver.in_flight(
            lambda call: bool(call.command) and call.command == request.command)
        alone = matches[0] if len(matches) == 1 else None
        with self._store.transaction(patience_s=PATIENCE_S) as tx:
            who = self._resolver.of_turn(tx, alone[0]) if alone else None
        if alone is not None and who is not None and who.is_owner and who.is_identified:
            return self._owners_own(alone[0], who)
        if alone is not None and self._resolver.use_up(alone[1]):
            return "once"
        if not self._slots.acquire(blocking=False):
            log.warning("manyhands: more than %d host approvals waiting; denied", MAX_HOST_WAITING)
            return "deny"
        try:
            return self._ask_owners(request, who, alone, deadline)
        finally:
            self._slots.release()

    def _owners_own(self, turn: Turn, who: Principal) -> str:
        """Back to the host's prompt where only the owner can answer; denied in a room."""
        if turn.direct and not turn.others:
            raise HandBack("an owner's own call in a direct chat or on the terminal")
        now = self._clock()
        with self._store.transaction(patience_s=PATIENCE_S) as tx:
            tx.record(now=now, kind="approval", event="denied in a room", person_id=who.person_id)
            self._desk.tell_owners(tx, "A dangerous command of yours in a room was denied, because "
                                       "anybody there could have answered its prompt. Run it from "
                                       "a direct chat.", now=now)
            waiting = self._desk.take_unsent(tx, now=now)
        self._desk.send(waiting)
        return "deny"

    def _ask_owners(self, request: Any, who: Principal | None, alone: tuple[Turn, Call] | None,
                    deadline: float) -> str:
        now = self._clock()
        wait_s = min(self._settings().approval_timeout_s, deadline - self._monotonic())
        if wait_s <= 0:
            return "deny"
        args = Arguments.of({"command": request.command, "why": request.description})
        person_id = who.person_id if who is not None and who.role is not None else ""
        with self._store.transaction(patience_s=PATIENCE_S) as tx:
            owners = self._desk.owner_addresses(tx)
            if not owners or (who is not None and who.role in (None, Role.BLOCKED)):
                return self._denied(tx, person_id, "no owner reachable", now=now)
            if self._desk.asks_too_often(tx, person_id, now=now):
                return self._denied(tx, person_id, "asked too often", now=now)
            if len(args.text) > MAX_ASK_CHARS:
                return self._denied(tx, person_id, "too long to be asked about", now=now)
            tool = alone[1].tool if alone else "a command"
            ask_id, code = self._desk.file_host(tx, person_id=person_id, tool=tool, args=args,
                                                owners=owners, now=now, expires_at=now + wait_s)
            waiting = self._desk.take_unsent(tx, now=now)
        if ask_id in self._desk.send(waiting) or not waiting:
            with self._store.transaction(patience_s=PATIENCE_S) as tx:
                tx.close_ask(ask_id=ask_id, outcome="withdrawn", answered_by="", reason="",
                             now=self._clock())
                return self._denied(tx, person_id, "no owner reachable", now=now)
        return self._wait(ask_id, code, deadline=min(deadline, self._monotonic() + wait_s))

    def _denied(self, tx: Tx, person_id: str, event: str, *, now: float) -> str:
        tx.record(now=now, kind="approval", event=event, person_id=person_id)
        return "deny"

    def _wait(self, ask_id: int, code: str, *, deadline: float) -> str:
        """Poll: the answer can be typed in another process. Never past the deadline for long."""
        while (left := deadline - self._monotonic()) > 0:
            with self._desk.answered:
                self._desk.answered.wait(min(POLL_S, left))
            try:
                with self._store.transaction(patience_s=min(POLL_S, left)) as tx:
                    self._desk.sweep(tx, now=self._clock())
                    ask = tx.ask(ask_id=ask_id)
            except StoreError:
                continue  # a busy file: look again within the same bound
            if ask is None or ask["closed_at"] is not None:
                return "once" if ask is not None and ask["outcome"] == "approved" else "deny"
        log.info("manyhands: request %s was not answered in time", code)
        return "deny"
