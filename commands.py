"""The `/many` verbs that people type: who typed it, one verb, one transaction, one answer.

Owns the parsing of what was typed, the verbs and the one renderer of each answer. A command
belongs to the sender that the platform names and answers only about that person; who may use
which verb is decided in `policy`. Reads are the views in `tools`. What people typed or stored is
printed through `identity.shown`, once. Long answers are rendered after the commit, in pages.
"""

from __future__ import annotations

import contextvars
import difflib
import functools
import json
import logging
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from . import identity
from .identity import (
    A_ROLE,
    Account,
    Draw,
    Evidence,
    Principal,
    Resolver,
    Sender,
    bound_sender,
    change_role,
    lists_of,
    mode_of,
    name_key,
    name_problem,
    role_subject,
    sender_of_source,
    shown,
    shown_lines,
    standing_of,
)
from .policy import (
    ALLOW_BUCKETS,
    ASK_BUCKETS,
    EXPLANATIONS,
    GRANTABLE_BY_INVITE,
    HOST_REFUSED,
    Bucket,
    Effect,
    Mode,
    Role,
    Settings,
    Standing,
    State,
    canonical_tool,
    decide,
    is_governed,
    is_new_owner,
    leaves_no_owner,
    may_approve,
    may_unshare,
    named_tools,
    sees_house,
    tool_pattern_problem,
    verbs_for,
)
from .prompt import ANSWER_HEAD
from .store import DAY_S, Row, Store, StoreError, Tx, day_of
from .tools import (
    MAX_HOURS,
    UNREACHABLE,
    BadInput,
    Budget,
    Entry,
    Fact,
    Happening,
    Profile,
    budget_now,
    facts_of,
    person_called,
    principal_of,
    profile_of,
    roster_of,
    runs_everything,
    shared_facts,
    trail_key,
    trail_of,
)
from .transport import Desk, Terms, ago, argument_lines, code_block, reach_of

log = logging.getLogger(__name__)

MAX_TYPED = 4000
PAGE_LINES = 30
PAGE_CHARS = 3000
PIECE = 1000          # the longest line of a page; longer ones are cut into such pieces
WIDTH = 40            # a phone's line
PEOPLE_A_PAGE = 15
QUEUE_A_PAGE = 5
SHORT_ARGUMENTS = 300
SHORT_DETAIL = 120
MAX_ROWS = 300        # of an audit answer, over all its pages
MAX_ASKS = 200        # of an export
UNDELIVERED_S = 60.0  # a notice that has not come back by then is not just slow
MAX_TOKENS = 10**12

FAILED = ("Something went wrong inside the bot, and its log says what. Look at /many whoami "
          "before typing it again.")
OWNER_UNREACHABLE = ("The bot's records cannot be reached, so nothing was read or changed. "
                     "{advice} The log has more (manyhands: /many failed).")
NOBODY = ("The platform named no sender for this command, so it is nobody's and can do nothing. "
          "Type it in a direct chat with the bot.")
NOT_ON_ROSTER = "You are not on this bot's roster."
DIRECT_ONLY = "That is for a direct chat: write to me there and type it again."
QUOTES = 'A name with spaces goes in quotes: "Ann Lee".'

ADVICE = """Check in the host's settings:
- plugins.entries.manyhands: allow_gateway_injection: true, or no request for approval reaches you.
- allow_admin_from and group_allow_admin_from: your own id. Without them everybody who can write to
  the bot, strangers too, may type the host's /approve always, /yolo and /model. Then list many,
  start, new, stop and status in user_allowed_commands and group_user_allowed_commands.
- The host's own allowlist comes first. Let strangers reach this plugin with the user list * or
  <PLATFORM>_ALLOW_ALL_USERS=true; who may stay is decided here.
- security.approval: transport: manyhands, transport_fallback: builtin, and approvals.mode: manual.
  Without them the asker, or a model, answers the host's dangerous-command prompts.
- display.busy_input_mode: queue, or other people's text is folded into a running turn."""

# Short sentences are texts; what takes a while to render is rendered after the commit.
Answer = str | Callable[[], str]


# -- one typed command -------------------------------------------------------------------------


class Verb(NamedTuple):
    """One row of the table of verbs.

    `private` answers belong in a direct chat. `takes_code` marks the verbs that answer approvals:
    somebody else's try is told to the owners. `more` is what `help VERB` adds.
    """

    usage: str
    about: str
    run: Callable[[Line], Answer]
    least: int = 0
    most: int = 0
    private: bool = False
    takes_code: bool = False

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    @property
    def more(self) -> str:
        return MORE.get(self.name, "")


class Line(NamedTuple):
    """A typed command: whom it belongs to, its words after the verb, and what verbs work with."""

    tx: Tx
    store: Store  # for what is read in pieces, after the commit
    who: Principal
    sender: Sender | None
    typed: str
    words: tuple[str, ...]
    desk: Desk
    resolver: Resolver
    settings: Settings
    draw: Draw
    now: float

    @property
    def at_seat(self) -> bool:
        return self.who.account == self.resolver.seat

    @property
    def is_direct(self) -> bool:
        """Nobody else reads the answer. A chat of unknown type counts as a room."""
        return self.at_seat or (self.sender is not None and self.sender.is_direct)

    def word(self, index: int, default: str = "") -> str:
        return self.words[index] if index < len(self.words) else default

    def wrong(self, what: str) -> BadInput:
        """What was wrong with the words, and the verb's usage line."""
        return BadInput(f"{what}\nUsage: /many {TABLE[self.typed].usage}")

    def record(self, kind: str, event: str, person_id: str, detail: str = "") -> None:
        self.tx.record(now=self.now, kind=kind, event=event, person_id=person_id, detail=detail)


def never_raises(callback: Callable[..., str]) -> Callable[..., str]:
    """Answer in words whatever happens: what a handler raises makes the host send its text on."""
    @functools.wraps(callback)
    def guarded(self: Commands, raw_args: object = "", source: object = None,
                **host: object) -> str:
        try:
            return callback(self, raw_args, source, **host) or FAILED
        except BadInput as error:
            return str(error)
        except StoreError as error:
            log.error("manyhands: /many failed (%s)", error)
            return self.unreachable(source, error.advice)
        except Exception:
            log.exception("manyhands: /many failed")
            return FAILED
    return guarded


class Commands:
    """The handler of `/many`."""

    def __init__(self, store: Store, resolver: Resolver, desk: Desk, *,
                 settings: Callable[[], Settings], clock: Callable[[], float],
                 draw: Draw) -> None:
        self._store = store
        self._resolver = resolver
        self._desk = desk
        self._settings = settings
        self._clock = clock
        self._draw = draw

    @never_raises
    def many(self, raw_args: object = "", source: object = None, **_host: object) -> str:
        """Carry out one typed command. `source` is the platform's event, on hosts that pass it."""
        words = words_of(raw_args if isinstance(raw_args, str) else "")
        bound, sender = _typist(source)
        now = self._clock()
        with self._store.transaction() as tx:
            who = self._resolver.of_command(tx, sender, bound=bound)
            answer = _carry_out(Line(
                tx, self._store, who, sender, words[0].casefold() if words else "help",
                tuple(words[1:]), self._desk, self._resolver, self._settings(), self._draw, now))
            if sender is not None and sender.account != self._resolver.seat:
                typist = self._resolver.principal(tx, sender.account, Evidence.CONTEXT)
                self._desk.learn_address(tx, typist, sender, now=now)
            notices = self._desk.take_unsent(tx, now=now)
        self._desk.send(notices)
        self._desk.wake()
        return answer if isinstance(answer, str) else answer()

    def unreachable(self, source: object, advice: str) -> str:
        """The sentence for a store that failed; an owner hears what to do, but not in a room."""
        bound, sender = _typist(source)
        account = None if sender is None else sender.account
        if not bound and not self._resolver.has_gateway:
            account = self._resolver.seat
        if not self._resolver.is_known_owner(account):
            return UNREACHABLE
        alone = sender is None or sender.is_direct
        return OWNER_UNREACHABLE.format(
            advice=advice if alone and advice else "Please try again in a moment.")


def _typist(source: object) -> tuple[bool, Sender | None]:
    """Whether the host named a platform for this command, and the sender it named."""
    if source is not None:
        return True, sender_of_source(source)
    return bound_sender(contextvars.copy_context())


def _carry_out(line: Line) -> Answer:
    if line.typed == HOST_REFUSED:
        return _host_refused(line)
    verb, may = TABLE.get(line.typed), verbs_for(line.who.role)
    if verb is None:
        near = difflib.get_close_matches(line.typed, sorted(may), n=1, cutoff=0.5)
        hint = f"Did you mean /many {near[0]}?" if near else "/many help lists what you can type."
        raise BadInput(f"There is no command {shown(line.typed, 40)}. {hint}")
    if verb.takes_code and line.words and line.who.is_identified \
            and not may_approve(line.who.role):
        return line.desk.foreign_code(line.tx, line.who, line.words[0], now=line.now)
    if verb.name not in may:
        return _refused(line, f"{verb.name} is not among the commands that you can use here. "
                              "/many help lists yours.")
    if len(line.words) < verb.least:
        raise line.wrong("Something is missing.")
    if len(line.words) > verb.most:
        raise line.wrong(f"That is more than {verb.name} takes."
                         + (f" {QUOTES}" if "name" in verb.usage else ""))
    if verb.private and not line.is_direct:
        raise BadInput(DIRECT_ONLY)
    return verb.run(line)


def _refused(line: Line, text: str) -> str:
    """A refusal and its row: each one, or one a minute of somebody who is not on the roster."""
    since = line.now - identity.REFUSAL_EVERY_S
    if line.who.role is not None or not any(
            row["kind"] == "refusal" for row in line.tx.trail(
                person_id=line.who.person_id, since=since, limit=5)):
        line.record("refusal", "verb", line.who.person_id, f"/many {line.typed}")
    return text


# -- what was typed ----------------------------------------------------------------------------

_CURLY = str.maketrans(dict.fromkeys("“”„‟", '"') | dict.fromkeys("‘’‚‛", "'"))
# A quote counts where a word begins and where one ends, so that O'Brien stays whole.
_WORD = re.compile(r"""\s*(?:"(.*?)"(?=\s|$)|'(.*?)'(?=\s|$)|(\S+))""")


def words_of(raw: str) -> list[str]:
    """The words of a typed line; quotes hold words with spaces. Raises BadInput when too long."""
    if len(raw) > MAX_TYPED:
        raise BadInput(f"That is {len(raw)} characters long; a command has at most {MAX_TYPED}.")
    text = "".join(map(_plain, raw)).translate(_CURLY).strip()
    return [next((part for part in match.groups() if part is not None), "")
            for match in _WORD.finditer(text)]


def _plain(char: str) -> str:
    """Odd blanks, line breaks and control characters as a blank; full-width forms as plain."""
    category = unicodedata.category(char)
    if category in ("Cc", "Zs", "Zl", "Zp"):
        return " "
    if category == "Cs":
        return "\ufffd"  # half of a surrogate pair, which no file can hold
    return unicodedata.normalize("NFKC", char) if "\uff01" <= char <= "\uff5e" else char


def _is_number(word: str) -> bool:
    """Plain digits, and few enough for SQLite."""
    return word.isascii() and word.isdigit() and len(word) < 16


def _whole(line: Line, word: str, what: str, *, low: int = 1, high: int) -> int:
    if not (_is_number(word) and low <= int(word) <= high):
        raise line.wrong(f"{what} is a whole number from {low} to {high}, not {shown(word, 40)}.")
    return int(word)


def _role(line: Line, word: str, among: Iterable[Role] = tuple(Role)) -> Role:
    found = {role.value: role for role in among}.get(word.casefold())
    if found is None:
        raise line.wrong(f"{shown(word, 40)} is not a role that fits here. "
                         f"It can be {', '.join(sorted(among))}.")
    return found


def _page(line: Line, index: int) -> int:
    return _whole(line, line.word(index, "1"), "A page", high=9999)


# -- how answers look --------------------------------------------------------------------------

# One character as it is printed: what `shown` spelled out is never cut in two.
_PRINTED = re.compile(r"\\u\{[^}]*\}|.", re.DOTALL)


def _pieces(text: str, size: int) -> list[str]:
    """A printed text cut into pieces of at most `size` characters; at least one piece."""
    if len(text) <= size:
        return [text]
    pieces = [""]
    for char in _PRINTED.findall(text):
        if len(pieces[-1]) + len(char) > size:
            pieces.append("")
        pieces[-1] += char
    return pieces


def _pages(lines: Iterable[str]) -> list[list[str]]:
    """The lines in pages that fit a phone and a chat's message."""
    pages: list[list[str]] = [[]]
    room = PAGE_CHARS
    for line in lines:
        for piece in _pieces(line, PIECE):
            if pages[-1] and (len(pages[-1]) == PAGE_LINES or len(piece) > room):
                pages.append([])
                room = PAGE_CHARS
            pages[-1].append(piece)
            room -= len(piece) + 1
    return pages


def _paged(title: str, lines: Iterable[str], *, page: int, again: str) -> str:
    """One page. `again` is the command that the next page's number is added to."""
    pages = _pages(lines)
    _reachable(page, of=len(pages))
    return _framed(title, "\n".join(pages[page - 1]), page=page, of=len(pages), again=again)


def _reachable(page: int, *, of: int) -> None:
    """Raises BadInput for a page behind the last one."""
    if page > of:
        raise BadInput(f"There is no page {page}; the last one is {of}.")


def _framed(title: str, body: str, *, page: int, of: int, again: str) -> str:
    head = title if of == 1 else f"{title} (page {page} of {of})"
    more = f"\nMore: /many {again} {page + 1}" if page < of else ""
    return f"{head}\n{body}{more}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as columns of equal width; the last column runs free."""
    if not rows:
        return []
    widths = [max(_columns(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell + " " * (width - _columns(cell))
                         for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
            for row in rows]


def _columns(text: str) -> int:
    """How wide a text stands in a fixed-width font."""
    return sum(0 if unicodedata.combining(c) else
               2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _wrapped(title: str, names: Iterable[str]) -> list[str]:
    """A titled list of tool names in lines of a phone's width; nothing when it is empty."""
    text = ", ".join(map(shown, names))
    if not text:
        return []
    return [f"{title}:", *textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ",
                                        break_long_words=False, break_on_hyphens=False)]


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M")


def _by(line: Line) -> str:
    """Who types this, for a sentence that owners read."""
    return shown(line.who.name) or "an owner"


# -- help and oneself --------------------------------------------------------------------------


def _help(line: Line) -> Answer:
    may = verbs_for(line.who.role)
    asked = line.word(0).casefold()
    if asked:
        verb = TABLE.get(asked)
        if verb is None or verb.name not in may:
            raise BadInput(f"{shown(asked, 40)} is not among your commands. "
                           "/many help lists them.")
        return "\n".join(filter(None, [f"/many {verb.usage}", verb.about, verb.more]))
    lines = _aligned([(verb.name, verb.about) for verb in TABLE.values()
                      if verb.name in may])
    if line.who.role is not None:
        return "\n".join(["Type /many and one of these:", *lines, "/many help VERB says more."])
    door = NOT_ON_ROSTER if line.tx.has_owner() else identity.UNCLAIMED
    return "\n".join([door, "Type /many and one of these:", *lines])


def _host_refused(line: Line) -> Answer:
    """The answer to what the plugin itself writes in the place of a host's refused command."""
    return (f"/{shown(line.word(0), 40)} is one of the host's own commands, for this bot's owner. "
            "It was not carried out.")


def _whoami(line: Line) -> Answer:
    if not line.who.is_identified:
        return NOBODY
    if line.who.role is None:
        return NOT_ON_ROSTER
    me = profile_of(line.tx, line.who, line.settings, now=line.now)
    lines = [f"You are {shown(me.name)}, {A_ROLE[me.role]}.", *_tool_lines(me),
             *_own_grants(line), f"Notes kept: {me.facts}",
             f"Tokens today: {_budget_text(me.budget)}"]
    if me.mode is not Mode.NORMAL:
        lines.append(f"The bot is {me.mode.value}: {_MODE_MEANS[me.mode]}")
    if sees_house(line.who.role):
        lines += _seen_failing(line)
    return "\n".join(lines)


_MODE_MEANS: Mapping[Mode, str] = {
    Mode.NORMAL: "everybody is held to their own tools.",
    Mode.PAUSED: "everyone on the roster runs every tool, and budgets are off.",
    Mode.LOCKED: "nobody but an owner runs any tool (lockdown).",
}


def _tool_lines(me: Profile) -> list[str]:
    if me.everything:
        return ["Tools: every tool"]
    return [*_wrapped("Tools", me.allow), *_wrapped("After an owner approves", me.ask)] \
        or ["Tools: none"]


def _own_grants(line: Line) -> list[str]:
    """What an owner has approved for this person and is not used up."""
    grants = line.desk.grants(line.tx, person_id=line.who.person_id, now=line.now)
    return [f"Approved: {shown(str(grant['tool']), 100)} {reach_of(grant, now=line.now)}"
            for grant in grants]


def _budget_text(budget: Budget) -> str:
    if budget.left is None:
        return f"{budget.used:,} used, no limit"
    return f"{budget.left:,} of {budget.per_day:,} left"


def _seen_failing(line: Line) -> list[str]:
    """What an owner should know is not working, seen in the last day."""
    undelivered = line.tx.undelivered_count(before=line.now - UNDELIVERED_S)
    unidentified = line.tx.unidentified_since(since=line.now - DAY_S)
    seen = [f"- setting {problem}" for problem in map(shown, line.settings.problems)]
    if undelivered:
        seen.append(f"- requests for approval that reached no owner's chat: {undelivered}. Is "
                    "allow_gateway_injection set, and have you written to the bot directly?")
    if unidentified:
        seen.append(f"- calls without an identity in 24 h: {unidentified}. /many audit all shows "
                    "them")
    return ["Seen failing:", *seen] if seen else ["Nothing has been seen failing."]


def _claim(line: Line) -> Answer:
    code = line.word(0)
    if not line.who.is_identified:
        return NOBODY
    if not code and line.at_seat:
        return _claim_code(line)
    if not code:
        raise line.wrong("Type /many claim in a terminal of the bot's own machine. It prints a "
                         "code; type that here after claim.")
    sender = line.sender or Sender(line.resolver.seat)
    verdict = identity.claim(line.tx, line.resolver, sender, code, now=line.now)
    if verdict.news:
        line.desk.tell_owners(line.tx, verdict.news, now=line.now, but=sender.account)
    return verdict.text


def _claim_code(line: Line) -> str:
    code = identity.mint_claim(line.tx, draw=line.draw, now=line.now)
    line.record("policy", "claim code", line.who.person_id)
    return (f"{code} makes whoever types it first an owner. It works once, for "
            f"{identity.CLAIM_TTL_S / 60:.0f} minutes.\n{ADVICE}\n"
            f"Now type this in your direct chat with the bot:\n/many claim {code}")


# -- the roster --------------------------------------------------------------------------------


def _roster(line: Line) -> Answer:
    page = _page(line, 0)
    entries, total = roster_of(line.tx, line.who, line.settings, now=line.now,
                               start=(page - 1) * PEOPLE_A_PAGE, count=PEOPLE_A_PAGE)
    pages = max(1, -(-total // PEOPLE_A_PAGE))
    _reachable(page, of=pages)
    if not total:
        return "Nobody is on the roster yet."
    return _framed(f"{total} on the roster:", "\n".join(
        _roster_lines(entries, ids=line.is_direct)), page=page,
                   of=pages, again="roster")


def _roster_lines(entries: list[Entry], *, ids: bool) -> Iterator[str]:
    """Platform ids stand below the names, where only the owner who asked can read them."""
    lines = _aligned([(shown(entry.name), entry.role.value, _tool_count(entry))
                      for entry in entries])
    for entry, text in zip(entries, lines, strict=True):
        yield text
        if entry.person_id and ids:
            yield f"  {shown(entry.person_id, 300)}"


def _tool_count(entry: Entry) -> str:
    if entry.everything:
        return "every tool"
    return f"{entry.allow} tools" + (f", {entry.ask} ask" if entry.ask else "")


def _invite(line: Line) -> Answer:
    words = sorted(line.words, key=str.isdigit)  # the role and the hours, in either order
    role = line.settings.invite_role
    if words and not words[0].isdigit():
        role = _role(line, words.pop(0), GRANTABLE_BY_INVITE)
    if len(words) > 1:
        raise line.wrong("That is more than invite takes.")
    hours = _whole(line, words[0], "hours", high=MAX_HOURS) if words \
        else line.settings.invite_ttl_h
    code = identity.mint_invite(line.tx, role=role, made_by=line.who.person_id,
                                ttl_s=hours * 3600, draw=line.draw, now=line.now)
    line.record("policy", "invite", line.who.person_id, f"{role.value}, {hours:g} h")
    notes = ["" if line.is_direct else "\nEverybody in this room can read it.",
             "\nNobody can use it while unknown_sender_policy is closed."
             if line.settings.unknown_sender_policy == "closed" else ""]
    return (f"An invite for {A_ROLE[role]}, for one person, within {hours:g} h. They send this to "
            f"the bot, alone in a message:\njoin {code}{''.join(notes)}")


def _invites(line: Line) -> Answer:
    rows = line.tx.live_invites(now=line.now)
    if not rows:
        return "No invite is open."
    lines = _aligned([(str(row["invite_id"]), str(row["role"]),
                       f"until {_stamp(row['expires_at'])}") for row in rows])
    page = _page(line, 0)
    return lambda: _paged("Open invites (UTC):", lines, page=page, again="invites")


_PLATFORM = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


def _add(line: Line) -> Answer:
    platform, sender_id, *rest = line.words
    if not _PLATFORM.fullmatch(platform.casefold()):
        raise line.wrong(f"{shown(platform, 40)} is not a platform's name, such as telegram.")
    if not sender_id or identity.has_hidden(sender_id):
        raise line.wrong("A sender id is not empty and has no invisible characters.")
    account = Account(platform.casefold(), sender_id)
    shape = ID_SHAPES.get(account.platform)
    if shape is not None and not shape.fullmatch(sender_id):
        raise line.wrong(f"A {account.platform} id is a number, not {shown(sender_id, 40)}.")
    role, name = _role_and_name(line, rest)
    if name:
        _free(line, name, person_id="")
    known = line.resolver.principal(line.tx, account, Evidence.CONTEXT)
    if known.role is not None:
        raise BadInput(f"That account is here already: {shown(known.name)}, {A_ROLE[known.role]}.")
    added = identity.add_person(line.tx, line.resolver, Sender(account, name), role,
                                joined_by=line.who.person_id, now=line.now)
    if name and added.name != name:  # a display name is cut to leave room for a number
        line.tx.rename(person_id=added.person_id, name=name, name_key=name_key(name))
    _tell_of_new_owner(line, added.person_id, name or added.name, None, role)
    return f"{shown(name or added.name)} is on the roster now: {A_ROLE[role]}."


def _role_and_name(line: Line, words: list[str]) -> tuple[Role, str]:
    """`[role] [name]`: one word may be either, two are a role and a name."""
    if len(words) == 2:
        return _role(line, words[0]), words[1]
    if words and words[0].casefold() in {role.value for role in Role}:
        return _role(line, words[0]), ""
    return line.settings.invite_role, words[0] if words else ""


def _free(line: Line, name: str, *, person_id: str) -> None:
    """Raises BadInput unless `name` can be kept and is nobody else's."""
    problem = name_problem(name)
    if problem is not None:
        raise line.wrong(f"{problem[0].upper()}{problem[1:]}.")
    row = line.tx.person_by_name(name_key=name_key(name))
    if row is not None and row["person_id"] != person_id:
        raise BadInput(f"Somebody here is called {shown(name)} already. Choose another name.")


def _tell_of_new_owner(line: Line, person_id: str, name: str, old: Role | None,
                       new: Role) -> None:
    if is_new_owner(old, new):
        line.desk.tell_owners(
            line.tx, f"{shown(name)} ({shown(person_id, 80)}) is an owner now, by {_by(line)}.",
            now=line.now, but=line.who.account)


def _change_role(line: Line) -> Answer:
    row = _person(line, line.words[0])
    old, new = Role(row["role"]), _role(line, line.words[1])
    name, person_id = shown(str(row["name"])), str(row["person_id"])
    if old is new:
        return f"{name} is {A_ROLE[new]} already."
    if leaves_no_owner(old, new, owners=line.tx.owner_count()):
        raise BadInput(f"{name} is the last owner and stays one. Make somebody else an owner "
                       f"first: /many role NAME {old.value}")
    change_role(line.tx, person_id, new, by=line.who.person_id, now=line.now)
    _look_again(line, line.tx.accounts(person_id=person_id))
    _tell_of_new_owner(line, person_id, str(row["name"]), old, new)
    return f"{name} is {A_ROLE[new]} now, no longer {A_ROLE[old]}. Requests made before have ended."


def _look_again(line: Line, accounts: list[Row]) -> None:
    """Let the resolver see what has become of these accounts: it remembers owners."""
    for row in accounts:
        line.resolver.principal(line.tx, Account(str(row["platform"]), str(row["sender_id"])),
                                Evidence.CONTEXT)


def _rename(line: Line) -> Answer:
    row, new = _person(line, line.words[0]), line.words[1]
    person_id = str(row["person_id"])
    _free(line, new, person_id=person_id)
    line.tx.rename(person_id=person_id, name=new, name_key=name_key(new))
    line.record("policy", "renamed", person_id,
                f"from {row['name']} to {new}, by {line.who.person_id}")
    return f"{shown(str(row['name']))} is called {shown(new)} now."


def _remove(line: Line) -> Answer:
    row = _person(line, line.words[0])
    name, person_id = shown(str(row["name"])), str(row["person_id"])
    if leaves_no_owner(Role(row["role"]), None, owners=line.tx.owner_count()):
        raise BadInput(f"{name} is the last owner and cannot be removed.")
    accounts = line.tx.accounts(person_id=person_id)
    line.tx.end_asks(person_id=person_id, now=line.now)
    line.tx.remove_person(person_id=person_id)
    line.record("policy", "removed", person_id, f"{row['name']}, by {line.who.person_id}")
    _look_again(line, accounts)
    return (f"{name} is off the roster, and their notes, invites and requests are deleted. Notes "
            "they shared stay, unsigned; the audit stays.")


def _person(line: Line, word: str) -> Row:
    return person_called(line.tx, line.who, word)


# -- tools and budgets -------------------------------------------------------------------------

_SUBJECTS: Mapping[str, Role] = {role_subject(role): role for role in GRANTABLE_BY_INVITE}
_CHANGES: Mapping[str, Effect] = {"add": Effect.ALLOW, "ask": Effect.ASK, "remove": Effect.REMOVE}
_EFFECT_TITLES: Mapping[str, str] = {"allow": "Added", "ask": "To ask for", "remove": "Removed"}
CRON_WARNING = ("Careful: a scheduled job runs later as the operator, with the operator's tools, "
                "again and again, and nobody is asked then.")


class _Subject(NamedTuple):
    """Whose lists or budget a verb is about: one person, or everybody of a role."""

    key: str
    title: str
    role: Role
    person: Principal | None


def _subject(line: Line, word: str) -> _Subject:
    role = _SUBJECTS.get(word.casefold())
    if role is not None:
        return _Subject(role_subject(role), f"every {role.value}", role, None)
    if word.startswith("@"):
        raise line.wrong(f"Roles with lists of their own are {' and '.join(sorted(_SUBJECTS))}.")
    who = principal_of(_person(line, word))
    return _Subject(who.person_id, shown(who.name), who.role or Role.BLOCKED, who)


def _standing(line: Line, subject: _Subject) -> Standing:
    if subject.person is not None:
        return standing_of(line.tx, subject.person, line.settings, now=line.now)
    _, of_role = lists_of(line.tx, subject="", role=subject.role)
    return Standing(subject.role, of_role=of_role, mode=mode_of(line.tx, line.settings),
                    approval_tools=line.settings.approval_tools)


def _tools(line: Line) -> Answer:
    subject = _subject(line, line.words[0])
    action = line.word(1).casefold()
    names = [canonical_tool(name) for word in line.words[2:] for name in word.split(",") if name]
    if not action:
        return _tools_read(line, subject)
    if action not in _CHANGES and action != "reset":
        raise line.wrong(f"{shown(action, 40)} is not one of add, ask, remove, reset.")
    if not names and action != "reset":
        raise line.wrong(f"Name the tools to {action}.")
    for name in names:
        problem = tool_pattern_problem(name)
        if problem is not None:
            raise line.wrong(f"{problem[0].upper()}{problem[1:]}.")
    _put_rules(line, subject.key, _CHANGES.get(action), names)
    ended = _end_asks_of(line, subject)
    line.record("policy", "tools", subject.key if subject.person else line.who.person_id,
                f"{action} {' '.join(names) or 'all'} for {subject.title}, by {line.who.person_id}")
    return _tools_changed(line, subject, action, names, ended)


def _put_rules(line: Line, key: str, effect: Effect | None, names: list[str]) -> None:
    """Write the lines of a change; no effect is a reset, of these tools or of all."""
    for name in names:
        if effect is None:
            line.tx.drop_rule(subject=key, tool=name)
        else:
            line.tx.put_rule(subject=key, tool=name, effect=effect.value)
    if effect is None and not names:
        line.tx.drop_rules(subject=key)


def _end_asks_of(line: Line, subject: _Subject) -> int:
    """End what was asked or approved under the old lists; how many."""
    if subject.person is not None:
        return line.tx.end_asks(person_id=subject.key, now=line.now)
    return sum(line.tx.end_asks(person_id=str(row["person_id"]), now=line.now)
               for row in line.tx.people() if row["role"] == subject.role.value)


def _tools_changed(line: Line, subject: _Subject, action: str, names: list[str],
                   ended: int) -> str:
    standing = _standing(line, subject)
    lines = [f"Changed for {subject.title}:" if names else
             f"The lists of {subject.title} are as built in again."]
    for name in names:
        decision = decide(standing, name)
        lines.append(f"{shown(name)}: {decision.state.value}, {EXPLANATIONS[decision.reason]}")
    lines += filter(None, map(_misspelled, names))
    if action in ("add", "ask") and (Bucket.of(names).holds("cronjob_manage")
                                     or any("cron" in name.casefold() for name in names)):
        lines.append(CRON_WARNING)
    if ended:
        lines.append(f"Requests and approvals that ended with it: {ended}.")
    return "\n".join(lines)


def _misspelled(name: str) -> str:
    """A hint where a name is nearly one of the built-in lists'; a plugin's own is in none."""
    known = {tool for buckets in (ALLOW_BUCKETS, ASK_BUCKETS) for bucket in buckets.values()
             for tool in bucket.exact}
    near = [] if name in known else difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f"No built-in list has {shown(name)}; did you mean {near[0]}?" if near else ""


def _tools_read(line: Line, subject: _Subject) -> str:
    standing = _standing(line, subject)
    named = named_tools(standing)
    lines = [f"{subject.title}, {subject.role.value}" if subject.person else subject.title]
    if runs_everything(standing):
        lines.append("Runs: every tool")
    else:
        lines += _wrapped("Runs", named[State.ALLOW]) or ["Runs: none"]
        lines += _wrapped("Asks first", named[State.ASK])
    rules = line.tx.rules(subject=subject.key, role_subject=subject.key)
    for effect, title in _EFFECT_TITLES.items():
        lines += _wrapped(f"{title} by an owner",
                          [str(row["tool"]) for row in rules if row["effect"] == effect])
    return "\n".join(lines)


def _budget(line: Line) -> Answer:
    subject, word = _subject(line, line.words[0]), line.words[1].casefold()
    tokens = None if word == "default" else _whole(
        line, word.replace(",", "").replace("_", ""), "Tokens a day", low=0, high=MAX_TOKENS)
    if subject.person is not None:
        line.tx.set_budget(person_id=subject.key, budget=tokens)
    else:
        line.tx.put_setting(key=f"budget {subject.key}", value=str(tokens or 0))
    said = "the role's default" if tokens is None and subject.person else \
        f"{tokens:,} tokens a day" if tokens else "no limit"
    line.record("policy", "budget", subject.key if subject.person else line.who.person_id,
                f"{said} for {subject.title}, by {line.who.person_id}")
    free = "" if is_governed(subject.role) else " An owner is never stopped by it."
    used = "" if subject.person is None else \
        f" Today: {_budget_text(budget_now(line.tx, subject.person, now=line.now))}."
    return f"Budget of {subject.title}: {said}.{used}{free}"


def _why(line: Line) -> Answer:
    subject, tool = _subject(line, line.words[0]), line.words[1]
    decision = decide(_standing(line, subject), tool)
    return (f"{shown(tool, 100)} for {subject.title}: {decision.state.value}\n"
            f"because {EXPLANATIONS[decision.reason]}.")


BAR = 12


def _usage(line: Line) -> Answer:
    """Tokens by person, today or over so many days, as bars that a phone shows well."""
    days = _whole(line, line.word(0, "1"), "days", high=3650)
    rows = line.tx.usage_since(day=day_of(line.now) - days + 1)
    if not rows:
        return "No tokens have been counted yet."
    most = max(int(row["tokens"]) for row in rows)
    table = []
    for row in rows:
        tokens, person = int(row["tokens"]), line.tx.person(person_id=str(row["person_id"]))
        name = str(person["name"]) if person is not None else \
            _PSEUDO.get(str(row["person_id"]), str(row["person_id"]))
        table.append((shown(name, 24), "█" * max(1, round(BAR * tokens / most)), f"{tokens:,}"))
    when = "today (UTC)" if days == 1 else f"in {days} days (UTC)"
    total = sum(int(row["tokens"]) for row in rows)
    return "\n".join([f"Tokens {when}: {total:,}", *_aligned(table)])


_PSEUDO: Mapping[str, str] = {identity.MACHINE.person_id: "automation"}


def _verify(line: Line) -> Answer:
    """Walk the audit's chain; what it cannot prove is said, and its head can be kept elsewhere."""
    def walk() -> str:
        found = line.store.verify_audit()
        if found.broken is not None:
            return (f"The audit is BROKEN at row {found.broken}: it was changed, or rows before it "
                    f"were taken out. The {found.rows} rows from {found.first} on are whole.\n"
                    "Somebody with access to the file has written to it. Keep a copy of it as it "
                    "is, and look at who can read and write its folder.")
        if not found.head:
            return "The audit is empty."
        dropped = f" Older rows were dropped; the chain starts at row {found.first}." \
            if found.first > 1 else ""
        return (f"The audit is whole: {found.rows} rows follow each other.{dropped}\n"
                f"Its head is row {found.head}:\n{found.head_chain}\n"
                "A chain cannot show that its newest rows were cut off or that an older copy of "
                "the file was put back. Keep the head elsewhere and compare it later.")
    return walk


# -- the mode ----------------------------------------------------------------------------------


def _pause(line: Line) -> Answer:
    return _set_mode(line, Mode.PAUSED)


def _lockdown(line: Line) -> Answer:
    ended = line.tx.end_asks(person_id=None, now=line.now)
    said = f" Requests and approvals that ended: {ended}." if ended else ""
    return _set_mode(line, Mode.LOCKED) + said


def _resume(line: Line) -> Answer:
    return _set_mode(line, Mode.NORMAL)


def _set_mode(line: Line, mode: Mode) -> str:
    line.tx.put_setting(key="mode", value=mode.value)
    line.record("policy", f"MODE {mode.value}", line.who.person_id, f"/many {line.typed}")
    log.info("manyhands: the mode is %s now, by %s", mode.value, line.who.person_id)
    back = "" if mode is Mode.NORMAL else " /many resume ends it."
    return f"The bot is {mode.value} now: {_MODE_MEANS[mode]}{back}"


# -- approvals ---------------------------------------------------------------------------------


def _approve(line: Line) -> Answer:
    if line.words:
        terms = Terms.of(line.words[1:])
        if terms is None:
            raise line.wrong("Behind the code go 30m or 2h (at most 24h), 3x (at most 100x) and "
                             "any, each once.")
        return line.desk.approve(line.tx, line.who, line.words[0], terms, now=line.now)
    if not line.is_direct:
        raise BadInput(DIRECT_ONLY)
    line.desk.sweep(line.tx, now=line.now)
    return _queue(line) if may_approve(line.who.role) else _own_asks(line)


def _queue(line: Line) -> Answer:
    asks = line.tx.open_asks()
    if not asks:
        return "No request is waiting."
    if len(asks) == 1:
        return line.desk.prompt(line.tx, asks[0], now=line.now)
    parts = [f"{ANSWER_HEAD}{len(asks)} requests are waiting, the oldest first:"]
    parts += [_short_ask(line, ask) for ask in asks[:QUEUE_A_PAGE]]
    if len(asks) > QUEUE_A_PAGE:
        parts.append(f"{len(asks) - QUEUE_A_PAGE} more come once these are answered.")
    return "\n".join([*parts, "Answer: /many approve CODE or /many deny CODE [reason]"])


def _short_ask(line: Line, ask: Row) -> str:
    """One line and the beginning of the arguments. It counts as shown by this."""
    line.desk.prompt(line.tx, ask, now=line.now)
    now_open = line.tx.ask(ask_id=int(ask["ask_id"])) or ask
    text = "\n".join(argument_lines(str(ask["args_json"])))
    short = _pieces(text, SHORT_ARGUMENTS)[0]
    cut = [] if short == text else [
        f"[... {len(text) - len(short)} more characters: /many show {ask['code']}]"]
    left = max(1, round(float(now_open["expires_at"]) - line.now))
    return "\n".join([f"{ask['code']} {_asker(line, ask)}: {shown(str(ask['tool']), 100)} "
                      f"(open for {left} s)", code_block([*short.split("\n"), *cut])])


def _asker(line: Line, ask: Row) -> str:
    row = line.tx.person(person_id=str(ask["person_id"]))
    return shown(str(row["name"])) if row is not None else "unidentified"


def _own_asks(line: Line) -> Answer:
    asks = line.tx.open_asks(person_id=line.who.person_id)
    if not asks:
        return "You have no request waiting."
    return "\n".join(["Waiting for an owner:", *_aligned([
        (shown(str(ask["tool"]), 100), f"asked {ago(float(ask['parked_at']), line.now)}")
        for ask in asks])])


def _deny(line: Line) -> Answer:
    return line.desk.deny(line.tx, line.who, line.words[0], " ".join(line.words[1:]),
                          now=line.now)


def _grants(line: Line) -> Answer:
    page = _page(line, 0)
    grants = line.desk.grants(line.tx, person_id=None, now=line.now)
    if not grants:
        return "No approval is open."
    lines = [text for grant in grants for text in _grant_lines(line, grant)]
    return lambda: _paged("Open approvals (/many revoke CODE):", lines, page=page, again="grants")


def _grant_lines(line: Line, grant: Row) -> list[str]:
    head = f"{grant['code']} {_asker(line, grant)}: {shown(str(grant['tool']), 100)}"
    if grant["binding"] == "tool":
        return [head, f"  {reach_of(grant, now=line.now)}"]
    text = "\n".join(argument_lines(str(grant["args_json"])))
    return [head, f"  {reach_of(grant, now=line.now)}:",
            *(f"  | {part}" for part in _pieces(text, SHORT_ARGUMENTS)[0].split("\n"))]


def _revoke(line: Line) -> Answer:
    """`<code or number>`: what is left of an approval, or an invite that nobody has used."""
    word = line.words[0]
    said = line.desk.revoke(line.tx, line.who, word, now=line.now)
    if said is not None:
        return said
    if _is_number(word) and line.tx.revoke_invite(invite_id=int(word), now=line.now):
        line.record("policy", "invite revoked", line.who.person_id, f"number {int(word)}")
        return f"Invite {int(word)} is revoked; its code admits nobody."
    raise BadInput(f"Nothing open is called {shown(word, 20)}. /many grants lists approvals, "
                   "/many invites lists invites.")


def _show(line: Line) -> Answer:
    line.desk.sweep(line.tx, now=line.now)
    page, code = _page(line, 1), identity.normal_code(line.words[0])
    ask = line.tx.ask_by_code(code=code)
    if ask is None:
        raise BadInput(f"There is no request {shown(line.words[0], 20)}. /many approve lists the "
                       "open ones.")
    is_open = ask["closed_at"] is None
    prompt = line.desk.prompt(line.tx, ask, now=line.now) if is_open else ""
    pages = _pages(argument_lines(str(ask["args_json"])))
    if is_open and len(pages) == 1 and f"/many show {code}" not in prompt:
        return prompt  # it shows everything
    _reachable(page, of=len(pages))
    state = f"Approve once: /many approve {code}" if is_open else \
        line.desk.how_it_ended(line.tx, ask, now=line.now)
    hidden = any("\\u{" in text for text in pages[page - 1])
    title = f"{ANSWER_HEAD}{code}: {_asker(line, ask)}, {shown(str(ask['tool']), 100)}"
    body = "\n".join(filter(None, [
        code_block(pages[page - 1]), state,
        "Hidden characters are present; they are written as \\u{...}." if hidden else "",
        *_story(line, code, since=float(ask["parked_at"]))]))
    return _framed(title, body, page=page, of=len(pages), again=f"show {code}")


def _story(line: Line, code: str, *, since: float) -> Iterator[str]:
    """What has become of an ask so far, from the audit."""
    yield "What happened (UTC):"
    for row in line.tx.story(code=code, since=since):
        detail = "" if row["event"] == "asked" else _cut(str(row["detail"]))
        yield f"{_stamp(row['at'])} {row['event']}" + (f" ({detail})" if detail else "")


# -- notes -------------------------------------------------------------------------------------


def _facts(line: Line) -> Answer:
    page = _page(line, 0)
    own = facts_of(line.tx, person_id=line.who.person_id)
    shared = shared_facts(line.tx.shared_facts())
    return lambda: _paged("Notes", _fact_lists(own, shared, "Shared with everyone:"), page=page,
                          again="facts")


def _fact_lists(own: list[Fact], shared: list[Fact], title: str) -> Iterator[str]:
    yield "Yours (/many forget N):" if own else "You have no notes."
    for fact in own:
        yield from _fact_lines(fact)
    if shared:
        yield title
    for fact in shared:
        yield from _fact_lines(fact)


def _fact_lines(fact: Fact) -> Iterator[str]:
    """The number, then the text; every further line of it stands indented below."""
    notes = [shown(fact.topic)] if fact.topic else []
    if fact.shared:
        notes.append(f"by {shown(fact.by)}" if fact.by else "unsigned")
    first, *rest = shown_lines(fact.text)
    yield f"{fact.n:>3}  {first}" + (f" ({'; '.join(notes)})" if notes and not rest else "")
    for text in rest:
        yield f"     {text}"
    if notes and rest:
        yield f"     ({'; '.join(notes)})"


def _forget(line: Line) -> Answer:
    person_id = line.who.person_id
    if line.words[0].casefold() == "all":
        count = line.tx.forget_all(person_id=person_id)
        line.record("memory", "forget", person_id, f"all, {count}")
        return f"Forgotten: all {count} of your notes. Notes that you shared stay shared."
    n = _whole(line, line.words[0], "A note's number (or the word all)", high=10**12)
    if not line.tx.forget(person_id=person_id, n=n):
        raise BadInput(f"You have no note {n}. /many export lists what is kept about you.")
    line.record("memory", "forget", person_id, f"number {n}")
    return f"Forgotten: your note {n}."


def _unshare(line: Line) -> Answer:
    n = _whole(line, line.words[0], "A shared note's number", high=10**12)
    row = line.tx.shared_fact(n=n)
    if row is None:
        raise BadInput(f"There is no shared note {n}. /many facts lists them.")
    if not may_unshare(line.who.role, is_author=row["author_id"] == line.who.person_id):
        return _refused(line, f"Shared note {n} can be taken back by whoever shared it, or by an "
                              "owner.")
    line.tx.unshare(n=n)
    line.record("memory", "unshare", line.who.person_id, f"number {n}")
    return f"Shared note {n} is taken back."


# -- the trail, and everything about oneself ---------------------------------------------------


def _audit(line: Line) -> Answer:
    """`[name|all] [hours] [page]`; a lone number is hours."""
    words = list(line.words)
    named = words.pop(0) if words and not words[0].isdigit() else ""
    if len(words) > 2:
        raise line.wrong(f"That is more than audit takes. {QUOTES}")
    hours = _whole(line, words[0] if words else "24", "hours", high=MAX_HOURS)
    page = _whole(line, words[1] if len(words) > 1 else "1", "A page", high=9999)
    house, key = sees_house(line.who.role), name_key(named)
    if key == "me" or (not house and key in ("", name_key(line.who.name))):
        return _trail(line, line.who.person_id, "Your trail", named, hours, page)
    if not house:
        return _refused(line, "You can read only your own trail: /many audit [hours]")
    if not line.is_direct:
        raise BadInput(DIRECT_ONLY)
    if key in ("", "all"):
        return _trail(line, None, "Everybody's trail", named, hours, page)
    if len(line.words) == 1 and line.tx.person_by_name(name_key=key) is None \
            and line.tx.ask_by_code(code=identity.normal_code(named)) is not None:
        return _show(line)  # a code in the place of a name
    return _trail(line, trail_key(line.tx, line.who, named), f"The trail of {shown(named, 80)}",
                  named, hours, page)


def _trail(line: Line, person_id: str | None, title: str, named: str, hours: int,
           page: int) -> Answer:
    rows = trail_of(line.tx, line.who, person_id=person_id, since=line.now - hours * 3600,
                    limit=MAX_ROWS)
    if not rows:
        return f"{title}: nothing in the last {hours} h."
    again = " ".join(["audit", *([_quoted(named)] if named else []), str(hours)])
    cut = "" if len(rows) < MAX_ROWS else f", the newest {MAX_ROWS}"
    return lambda: _paged(f"{title}, {hours} h, UTC{cut}:",
                          (_trail_line(row, named=person_id is None) for row in rows),
                          page=page, again=again)


def _trail_line(row: Happening, *, named: bool) -> str:
    who = f" {row.name}:" if named and row.name else ""
    event = "" if row.event == row.kind else row.event
    words = " ".join(filter(None, [row.kind, event, row.tool, row.code]))
    return f"{_stamp(row.at)}{who} {words}" + (f" ({_cut(row.detail)})" if row.detail else "")


def _cut(text: str) -> str:
    """The beginning of a text that the store keeps already shown."""
    short = _pieces(text, SHORT_DETAIL)[0]
    return short if short == text else f"{short}…"


def _quoted(word: str) -> str:
    return f'"{shown(word, 80)}"' if " " in word else shown(word, 80)


def _export(line: Line) -> Answer:
    page, tx, who = _page(line, 0), line.tx, line.who
    person_id = who.person_id
    row = tx.person(person_id=person_id)
    accounts = tx.accounts(person_id=person_id)
    own = _own_rules(tx, person_id)
    budget = budget_now(tx, who, now=line.now)
    facts = facts_of(tx, person_id=person_id)
    shared = shared_facts(tx.shared_by(author_id=person_id))
    asks = tx.asks_of(person_id=person_id, limit=MAX_ASKS)
    census, rows = tx.census(person_id=person_id), tx.trail_count(person_id=person_id)
    addresses = [tx.address(platform=str(a["platform"]), user_id=str(a["sender_id"]))
                 for a in accounts]
    latest = trail_of(tx, who, person_id=person_id, since=0.0, limit=PAGE_LINES)

    def lines() -> Iterator[str]:
        yield from _export_person(row, who, accounts, addresses)
        yield from _wrapped("Your own tool lines", own)
        yield f"Tokens today: {_budget_text(budget)}"
        yield from _export_census(census)
        yield from _fact_lists(facts, shared, "Shared by you (/many unshare N):")
        yield from _export_asks(asks)
        yield f"Audit rows about you: {rows}; the newest, in UTC:"
        yield from (_trail_line(happening, named=False) for happening in latest)
    return lambda: _paged("All that is kept about you", lines(), page=page, again="export")


def _own_rules(tx: Tx, person_id: str) -> list[str]:
    return [f"{row['tool']} {row['effect']}"
            for row in tx.rules(subject=person_id, role_subject=person_id)]


def _export_person(row: Row | None, who: Principal, accounts: list[Row],
                   addresses: list[Row | None]) -> Iterator[str]:
    yield f"Name: {shown(who.name)}"
    if who.role is not None:
        yield f"Role: {who.role.value}"
    if row is not None:
        yield f"On the roster since: {_stamp(row['joined_at'])} UTC"
        yield "Budget: " + ("the role's default" if row["budget"] is None else
                            f"{row['budget']:,} tokens a day (0 is no limit)")
    for account in accounts:
        yield f"Account: {shown(str(account['platform']))}:{shown(str(account['sender_id']))}"
    for address in filter(None, addresses):
        yield f"Direct chat: {shown(json.dumps(dict(address), ensure_ascii=False))}"


_CENSUS: Mapping[str, str] = {
    "sessions": "Sessions you spoke in", "tokens": "Tokens in all", "invites_made": "Invites made",
    "invites_used": "Invites used", "notices": "Private notices", "wrong_codes": "Wrong codes"}


def _export_census(census: Row | None) -> Iterator[str]:
    for key, title in _CENSUS.items():
        if census is not None and census[key]:
            yield f"{title}: {census[key]:,}"


def _export_asks(asks: list[Row]) -> Iterator[str]:
    """What this person asked an owner for. Codes and who answered are not theirs to read."""
    if asks:
        yield f"Requests to an owner ({len(asks)}):"
    for ask in asks:
        reason = f", {ask['reason']}" if ask["reason"] else ""  # kept already shown
        yield (f"{_stamp(ask['parked_at'])} {shown(str(ask['tool']), 100)}: "
               f"{ask['outcome'] or 'waiting'}{reason}")
        yield from (f"     {text}" for text in argument_lines(str(ask["args_json"])))


# -- the table ---------------------------------------------------------------------------------

MORE: Mapping[str, str] = {
    "approve": "Alone: the requests that are waiting. With a code: one run of exactly that call; "
               "30m, 2h, 3x or both open more of them, any also with other arguments.\n"
               "/many approve K7QD 3x",
    "audit": "Alone: your own trail, for an owner everybody's. Hours count back from now. A "
             "request's code tells its story.\n/many audit Minh 48",
    "help": "A verb's name says more about it.\n/many help approve",
    "whoami": "Your role, what you may run, what is left of today's tokens, and what an owner "
              "should look at.",
    "claim": "On the bot's own terminal, alone: makes a code that lives ten minutes. In a chat, "
             "with that code: you are an owner.",
    "roster": "Names, roles and how many tools each may run; ids for owners in a direct chat.",
    "facts": "Yours, then the shared ones, each with the number that forget and unshare take.",
    "forget": "The note is gone for good. all deletes every note of yours, not the shared ones.\n"
              "/many forget 3",
    "unshare": "Nobody sees the shared note any more. Its author and owners may.\n"
               "/many unshare 2",
    "export": "Your account, notes, tools, budget, requests and trail, in pages.",
    "deny": "Nothing was run and nothing will be; the reason is told to whoever asked.\n"
            "/many deny K7QD not on a Sunday",
    "show": "The arguments whole, and what has happened to the request so far.\n/many show K7QD",
    "grants": "What may still run, how often and until when; revoke ends it.",
    "revoke": "A code ends what an approval opened, a number of /many invites an invite.\n"
              "/many revoke K7QD",
    "invites": "Each with the number that revoke takes.",
    "role": "member, guest, owner or blocked. What they had asked for ends with the old role.\n"
            "/many role Minh guest",
    "rename": 'A name with spaces goes in quotes.\n/many rename Minh "Minh Bui"',
    "remove": "Their notes, requests and invites are deleted; the audit and shared notes stay.",
    "usage": "The most first, today or in so many days back; a longer bar is more tokens.\n"
             "/many usage 7",
    "verify": "Walks every row of the audit and names the first that was changed or taken out.",
    "why": "The rule that lets them, asks you or refuses; nothing is run.\n"
           "/many why Minh terminal",
    "pause": "The tool rules are off for everybody on the roster until resume; the audit goes on.",
    "lockdown": "Ends every waiting request and approval as well.",
    "resume": "Ends pause and lockdown.",
    "budget": "Tokens a day, prompts included (a short message is about 2,000); 0 is no limit, "
              "default is the role's. @member and @guest set a role's.\n/many budget Minh 200000",
    "invite": "A role (member, guest) and hours, both optional.\n/many invite guest 24",
    "add": "The id is the platform's own number or id, not a @name.\n"
           "/many add telegram 222 member Minh",
    "tools": "Alone: what NAME may run. add lets a tool run, ask asks you first, remove takes it "
             "away, reset undoes all of these. @member or @guest change a role; a * at the end "
             "is a pattern.\n/many tools Minh ask web_extract",
}

# What a platform's sender ids look like, where a wrong one would just never match anybody.
ID_SHAPES: Mapping[str, re.Pattern[str]] = {"telegram": re.compile(r"-?\d+")}

ANY = 10**6
TABLE: Mapping[str, Verb] = {verb.name: verb for verb in (
    Verb("help [verb]", "what you can type", _help, most=1),
    Verb("whoami", "who you are here", _whoami),
    Verb("claim [code]", "become an owner, with a code", _claim, most=1),
    Verb("roster [page]", "who is here", _roster, most=1),
    Verb("facts [page]", "your notes and shared ones", _facts, most=1, private=True),
    Verb("forget <n|all>", "delete a note of yours", _forget, least=1, most=1),
    Verb("unshare <n>", "take back a shared note", _unshare, least=1, most=1),
    Verb("export [page]", "all that is kept about you", _export, most=1, private=True),
    Verb("audit [name|all] [hours] [page]", "what was done and refused", _audit, most=3),
    Verb("approve [code] [30m] [3x] [any]", "requests that are waiting", _approve, most=4,
         takes_code=True),
    Verb("deny <code> [reason]", "refuse a request", _deny, least=1, most=ANY, takes_code=True),
    Verb("show <code> [page]", "a request's arguments", _show, least=1, most=2, private=True,
         takes_code=True),
    Verb("grants [page]", "approvals still open", _grants, most=1, private=True),
    Verb("revoke <code or number>", "end an approval or invite", _revoke, least=1, most=1),
    Verb("invite [role] [hours]", "make an invite code", _invite, most=2),
    Verb("invites [page]", "invites not used yet", _invites, most=1),
    Verb("add <platform> <sender_id> [role] [name]", "put an account on the list", _add,
         least=2, most=4),
    Verb("role <name> <role>", "change somebody's role", _change_role, least=2, most=2),
    Verb("rename <name> <new>", "change somebody's name", _rename, least=2, most=2),
    Verb("tools <name|@member|@guest> [add|ask|remove|reset <tool...>]", "read or change tools",
         _tools, least=1, most=ANY),
    Verb("budget <name|@member|@guest> <tokens|default>", "tokens a day", _budget, least=2,
         most=2),
    Verb("remove <name>", "take somebody off the list", _remove, least=1, most=1),
    Verb("usage [days]", "tokens by person", _usage, most=1, private=True),
    Verb("verify", "is the audit whole", _verify),
    Verb("why <name> <tool>", "may they run it, and why", _why, least=2, most=2),
    Verb("pause", "everyone runs every tool", _pause),
    Verb("lockdown", "only owners run tools", _lockdown),
    Verb("resume", "back to normal", _resume),
)}
