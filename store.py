"""The one SQLite file: its schema, every query, and how a transaction is made.

Owns all SQL. Takes no decision: it is told the instant (`now`, UTC seconds) and the keys, and hands
back `sqlite3.Row`s. A person's facts are reachable only through queries that require that person's
id. Text that people or models wrote passes the `clean` function given to `Store` before it becomes
part of an audit row. Nothing is opened at import or construction; the first transaction opens.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import sqlite3
import threading
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

log = logging.getLogger(__name__)

SHARED_SPACE = "@shared"  # the posting space of shared facts; a person's space is their id
SEAT_PREFIX = "cli:"
MAX_FACTS = 1000
DAY_S = 86400.0
CODE_REUSE_S = 30 * DAY_S
APPLICATION_ID = 0x6D686E64  # "mhnd": tells our file from a foreign one of the same version

# A busy file is waited for this long; well under the host's 30 s bound on a hook.
BUSY_TIMEOUT_S = 4.0
_BUSY_MS = round(BUSY_TIMEOUT_S * 1000)
LOCK_TIMEOUT_S = 6.0
_MAX_TRAIL_ID = 120
_MAX_KEPT = 512
# The log is folded into the file beside the turns once it has grown this long. Should writers be so
# busy that it never ends, the last of it is done while they wait, for a moment at most.
_LOG_BYTES = 4 << 20
_LONG_LOG_BYTES = 32 << 20
_FOLD_PATIENCE_S = 0.25
_LOOK_EVERY = 64  # commits from one look at the log's length to the next
_WAL_TRIES = 50


class StoreError(Exception):
    """The store could not do what was asked. The text is for the log.

    `advice` says where the file is and what to do, for whoever runs the bot; "" when nothing can
    be done but to try again.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.advice = advice


class StoreUnusable(StoreError):
    """The file is not ours, newer than this version, or damaged. It has not been touched."""


class StoreBusy(StoreError):
    """Another process or thread held the file for longer than the bounded wait."""


_LEFT_UNTOUCHED = ("{path} is not one of manyhands' files and was left untouched. Point db_path at "
                   "another file, or move this one away.")
# What to do about the errors of SQLite whose names begin so.
_SPACE = "Check the disk that {path} is on, and its free space."
_ADVICE = {
    "SQLITE_READONLY": "{path} or its folder cannot be written to by this account; change their "
                       "owner or mode.",
    "SQLITE_CANTOPEN": "Check that the folder of {path} exists and that this account may read and "
                       "write there.",
    "SQLITE_FULL": "The disk that {path} is on is full; make room.",
}

# What SQLite, the file system and values that SQLite cannot hold raise; `Store._ours` translates.
_TROUBLE = (sqlite3.Error, OSError, OverflowError, UnicodeEncodeError)

Row = sqlite3.Row
Value = str | int | float | None
T = TypeVar("T")

# What a fresh file is made by. Whoever changes it adds the step that brings an older file here to
# UPGRADES, further down, and writes down what the older version's file looked like in
# tests/old_stores.
SCHEMA: tuple[str, ...] = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    """CREATE TABLE people (
        person_id TEXT PRIMARY KEY,
        name      TEXT NOT NULL,
        name_key  TEXT NOT NULL UNIQUE,
        role      TEXT NOT NULL CHECK (role IN ('owner', 'member', 'guest', 'blocked')),
        budget    INTEGER CHECK (budget IS NULL OR budget >= 0),
        joined_at REAL NOT NULL,
        joined_by TEXT NOT NULL)""",
    """CREATE INDEX people_owners ON people (joined_at, person_id) WHERE role = 'owner'""",
    """CREATE TABLE accounts (
        platform  TEXT NOT NULL,
        sender_id TEXT NOT NULL,
        person_id TEXT NOT NULL REFERENCES people (person_id) ON DELETE CASCADE,
        PRIMARY KEY (platform, sender_id)) WITHOUT ROWID""",
    "CREATE INDEX accounts_of ON accounts (person_id)",
    """CREATE TABLE addresses (
        platform   TEXT NOT NULL,
        user_id    TEXT NOT NULL,
        chat_id    TEXT NOT NULL,
        chat_type  TEXT NOT NULL,
        thread_id  TEXT NOT NULL,
        learned_at REAL NOT NULL,
        PRIMARY KEY (platform, user_id)) WITHOUT ROWID""",
    """CREATE TABLE tool_rules (
        subject TEXT NOT NULL,
        tool    TEXT NOT NULL,
        effect  TEXT NOT NULL CHECK (effect IN ('allow', 'ask', 'remove')),
        PRIMARY KEY (subject, tool)) WITHOUT ROWID""",
    """CREATE TABLE facts (
        person_id TEXT NOT NULL,
        n         INTEGER NOT NULL,
        text      TEXT NOT NULL,
        topic     TEXT NOT NULL,
        digest    TEXT NOT NULL,
        made_at   REAL NOT NULL,
        PRIMARY KEY (person_id, n),
        UNIQUE (person_id, digest)) WITHOUT ROWID""",
    """CREATE TABLE shared_facts (
        n         INTEGER PRIMARY KEY AUTOINCREMENT,
        author_id TEXT,
        text      TEXT NOT NULL,
        digest    TEXT NOT NULL UNIQUE,
        made_at   REAL NOT NULL)""",
    "CREATE INDEX shared_of ON shared_facts (author_id)",
    """CREATE TABLE terms (
        space TEXT NOT NULL,
        term  TEXT NOT NULL,
        n     INTEGER NOT NULL,
        PRIMARY KEY (space, term, n)) WITHOUT ROWID""",
    """CREATE TABLE counters (
        name  TEXT PRIMARY KEY,
        value INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE audit (
        audit_id  INTEGER PRIMARY KEY,
        at        REAL NOT NULL,
        kind      TEXT NOT NULL CHECK (kind IN
                  ('turn', 'tool', 'refusal', 'approval', 'policy', 'memory', 'tokens')),
        event     TEXT NOT NULL,
        person_id TEXT NOT NULL,
        tool      TEXT NOT NULL,
        code      TEXT NOT NULL,
        detail    TEXT NOT NULL,
        chain     TEXT NOT NULL)""",
    "CREATE INDEX audit_of ON audit (person_id, audit_id)",
    "CREATE INDEX audit_code ON audit (code, audit_id) WHERE code <> ''",
    """CREATE TABLE sessions (
        session_id TEXT NOT NULL,
        speaker    TEXT NOT NULL,
        first_at   REAL NOT NULL,
        last_at    REAL NOT NULL,
        PRIMARY KEY (session_id, speaker)) WITHOUT ROWID""",
    """CREATE TABLE lineage (
        session_id TEXT PRIMARY KEY,
        account    TEXT NOT NULL,
        chat       TEXT NOT NULL,
        started_at REAL NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE invites (
        invite_id   INTEGER PRIMARY KEY AUTOINCREMENT,
        code_hash   TEXT NOT NULL UNIQUE,
        role        TEXT NOT NULL CHECK (role IN ('member', 'guest')),
        made_by     TEXT NOT NULL,
        made_at     REAL NOT NULL,
        expires_at  REAL NOT NULL,
        redeemed_at REAL,
        redeemed_by TEXT)""",
    "CREATE INDEX invites_open ON invites (expires_at) WHERE redeemed_at IS NULL",
    """CREATE TABLE claims (
        code_hash  TEXT PRIMARY KEY,
        made_at    REAL NOT NULL,
        expires_at REAL NOT NULL,
        used_at    REAL) WITHOUT ROWID""",
    """CREATE TABLE attempts (
        attempt_id INTEGER PRIMARY KEY,
        account    TEXT NOT NULL,
        at         REAL NOT NULL)""",
    "CREATE INDEX attempts_of ON attempts (account, at)",
    "CREATE INDEX attempts_at ON attempts (at)",
    """CREATE TABLE approvals (
        ask_id      INTEGER PRIMARY KEY AUTOINCREMENT,
        code        TEXT NOT NULL,
        kind        TEXT NOT NULL CHECK (kind IN ('tool', 'host')),
        person_id   TEXT NOT NULL,
        tool        TEXT NOT NULL,
        args_json   TEXT NOT NULL,
        args_digest TEXT NOT NULL,
        binding     TEXT NOT NULL CHECK (binding IN ('arguments', 'tool')),
        differs     INTEGER NOT NULL,
        via         TEXT NOT NULL DEFAULT '',
        chat        TEXT NOT NULL,
        parked_at   REAL NOT NULL,
        expires_at  REAL NOT NULL,
        shown_at    REAL,
        closed_at   REAL,
        outcome     TEXT CHECK (outcome IN
                    ('approved', 'denied', 'expired', 'superseded', 'withdrawn')),
        answered_by TEXT NOT NULL DEFAULT '',
        reason      TEXT NOT NULL DEFAULT '',
        uses_left   INTEGER NOT NULL DEFAULT 0 CHECK (uses_left >= 0),
        grant_until REAL,
        CHECK ((closed_at IS NULL) = (outcome IS NULL)))""",
    # One live code per person and tool, held by the file itself and not only by the code.
    """CREATE UNIQUE INDEX one_open_ask ON approvals (person_id, tool)
        WHERE closed_at IS NULL AND kind = 'tool'""",
    "CREATE INDEX approvals_code ON approvals (code, ask_id)",
    "CREATE INDEX approvals_of ON approvals (person_id, tool, args_digest, ask_id)",
    "CREATE INDEX approvals_parked ON approvals (person_id, parked_at, outcome)",
    """CREATE INDEX approvals_open ON approvals (expires_at) WHERE closed_at IS NULL""",
    """CREATE INDEX approvals_granted ON approvals (person_id, tool, grant_until)
        WHERE uses_left > 0""",
    # What `cut_ended_asks` has still to do.
    """CREATE INDEX approvals_long ON approvals (closed_at)
        WHERE closed_at IS NOT NULL AND length(args_json) > 4000""",
    """CREATE TABLE notices (
        nonce      TEXT PRIMARY KEY,
        kind       TEXT NOT NULL CHECK (kind IN ('ask', 'news', 'outcome', 'resume')),
        ask_id     INTEGER,
        text       TEXT NOT NULL,
        person_id  TEXT NOT NULL,
        platform   TEXT NOT NULL,
        user_id    TEXT NOT NULL,
        chat_id    TEXT NOT NULL,
        chat_type  TEXT NOT NULL,
        thread_id  TEXT NOT NULL,
        made_at    REAL NOT NULL,
        sent_at    REAL,
        shown_at   REAL) WITHOUT ROWID""",
    "CREATE INDEX notices_unsent ON notices (made_at) WHERE sent_at IS NULL",
    "CREATE INDEX notices_of_ask ON notices (ask_id)",
    """CREATE TABLE settings (
        key   TEXT PRIMARY KEY,
        value TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE usage (
        person_id TEXT NOT NULL,
        day       INTEGER NOT NULL,
        tokens    INTEGER NOT NULL,
        PRIMARY KEY (person_id, day)) WITHOUT ROWID""",
    "CREATE INDEX usage_on ON usage (day)",
)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def day_of(now: float) -> int:
    """The UTC day that `now` falls in, as days since the epoch."""
    return int(now // DAY_S)


# -- the recall index's terms ------------------------------------------------------------------

_MAX_TERMS = 4000  # more than a fact of 2,000 characters has, so that its end is found as well
_MAX_QUERY_TERMS = 64
_MAX_TERM = 40
# Scripts written without spaces between words: ranges of Han, kana, Hangul, Thai, Lao, Myanmar
# and Khmer. A run of them is indexed by its pairs of characters.
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x30FF),
             (0x3400, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
# Of these, the ones in which one character can be a whole word: Han and Hangul syllables.
_WHOLE_WORDS = ((0x3400, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def terms(text: str, limit: int = _MAX_TERMS) -> list[str]:
    """What a fact or a query is found by, in any language; each term once, in reading order.

    Words are compatibility-normalised and case-folded; a word of six characters or more is also
    found by its first five, so that an ending does not hide it. Scripts without spaces are cut
    into pairs of neighbouring characters; a Han character or Hangul syllable also stands alone.
    """
    found: dict[str, None] = {}
    for word in _words(unicodedata.normalize("NFKC", text).casefold()):
        for term in _terms_of(word):
            found[term[:_MAX_TERM]] = None
            if len(found) >= limit:
                return list(found)
    return list(found)


_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")


def _words(text: str) -> Iterator[str]:
    """Runs of letters, marks and digits, cut where a script without spaces begins or ends."""
    if text.isascii():
        yield from _ASCII_WORD.findall(text)
        return
    word: list[str] = []
    unspaced = False
    for char in text:
        counts = unicodedata.category(char)[0] in "LMN"
        here = _within(char, _UNSPACED)
        if word and (not counts or here is not unspaced):
            yield "".join(word)
            word = []
        if counts:
            word.append(char)
            unspaced = here
    if word:
        yield "".join(word)


def _terms_of(word: str) -> Iterator[str]:
    if word[0] < "\u0e00" or not _within(word[0], _UNSPACED):
        yield word
        if len(word) > 5:
            yield word[:5] + "~"
    elif len(word) == 1:
        yield word
    else:
        yield from (word[i:i + 2] for i in range(len(word) - 1))
        yield from (char for char in word if _within(char, _WHOLE_WORDS))


def _within(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= ord(char) <= high for low, high in ranges)


def _by_relevance(postings: Iterable[Row]) -> list[tuple[str, int]]:
    """(space, number) of what was hit: a rare term weighs more, ties go to the newer fact."""
    score: defaultdict[tuple[str, int], float] = defaultdict(float)
    for space, listed in postings:
        numbers = [int(n) for n in listed.split(",")]
        weight = 1.0 / math.log2(1.0 + len(numbers))
        for n in numbers:
            score[space, n] += weight
    return sorted(score, key=lambda key: (-score[key], key[0] == SHARED_SPACE, -key[1]))


# -- the audit's chain -------------------------------------------------------------------------

_CHAINED = ("audit_id", "at", "kind", "event", "person_id", "tool", "code", "detail")
_INSERT_AUDIT = """INSERT INTO audit
                   (audit_id, at, kind, event, person_id, tool, code, detail, chain)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_OLDER_ROWS = 1000   # in a row; then the audit is taken to be older from there on
_VERIFY_ROWS = 1000  # in one transaction, which others wait for


def _chained(row: Row) -> list[Value]:
    """What of an audit row its hash covers."""
    return [row[key] for key in _CHAINED]


def _link(chain: str, values: list[Any]) -> str:
    """A row's own hash: over the hash of the row before it and all of its columns, as JSON."""
    number, at, *texts = values
    return digest(f"{chain}[{number}, {at!r}, {', '.join(map(encode_basestring_ascii, texts))}]")


def _follows(chain: str, row: Row) -> bool:
    try:
        return bool(row["chain"] == _link(chain, _chained(row)))
    except TypeError:  # somebody has put bytes or nothing in the place of a text
        return False


class Verified(NamedTuple):
    """What a walk of the chain found: `broken` is the first row that does not follow, or None."""

    rows: int
    first: int
    head: int
    head_chain: str
    broken: int | None


# -- opening -----------------------------------------------------------------------------------


def _prepare_place(path: Path) -> None:
    """Private folders and an empty private file, so that SQLite's own files inherit 0600."""
    for folder in (*reversed(path.parent.parents), path.parent):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)  # another process may be making it as well
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _look(path: Path) -> None:
    """Refuse a file that is not ours before a writable connection exists.

    Closing one folds the log that a crashed writer left behind into the file, and SQLite takes a
    file of one byte for an empty one. The file is never opened by other means than SQLite's: on
    POSIX, closing such a handle would drop the locks of every connection in this process.
    """
    if path.stat().st_size == 1:
        raise StoreUnusable(f"{path} is not a database", _LEFT_UNTOUCHED.format(path=path))
    if not Path(f"{path}-wal").exists():
        return
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True,
                           isolation_level=None, timeout=BUSY_TIMEOUT_S)
    try:
        with suppress(sqlite3.OperationalError):  # needs recovery first: checked when writable
            _check_ours(conn, path)
    finally:
        conn.close()


def _check_ours(conn: sqlite3.Connection, path: Path) -> int:
    """The file's schema version. Only reads: a file that is not ours stays as it is."""
    conn.execute("BEGIN")  # one snapshot: another process may be making the file right now
    version = int(conn.execute("PRAGMA user_version").fetchone()[0])
    tables = int(conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    app = int(conn.execute("PRAGMA application_id").fetchone()[0])
    conn.execute("COMMIT")
    blank = not tables and version == 0 and app == 0
    if not blank and (version == 0 or app != APPLICATION_ID):
        raise StoreUnusable(f"{path} is a database of another program",
                            _LEFT_UNTOUCHED.format(path=path))
    _refuse_newer(version, path)
    return version


def _refuse_newer(version: int, path: Path) -> None:
    if version > SCHEMA_VERSION:
        raise StoreUnusable(f"{path} was written by a newer manyhands (schema {version}, this one "
                            f"knows {SCHEMA_VERSION})",
                            f"{path} is of a newer version and was left untouched. Update the "
                            "plugin.")


def _migrate(conn: sqlite3.Connection, version: int, path: Path) -> None:
    """Bring the file up to date in one transaction; whoever lost the race changes nothing."""
    if version == SCHEMA_VERSION:
        return
    conn.execute("BEGIN IMMEDIATE")
    try:
        current = int(conn.execute("PRAGMA user_version").fetchone()[0])
        _refuse_newer(current, path)  # another process may have been quicker, and newer
        if current == 0:
            _execute_each(conn, SCHEMA)
        else:
            for upgrade in UPGRADES[current - 1:]:
                upgrade(conn)
        conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION:d}")
        conn.execute("COMMIT")
    except BaseException:
        _roll_back(conn)
        raise


def _execute_each(conn: sqlite3.Connection, statements: Iterable[str]) -> None:
    """Statement by statement: `executescript` commits first, so half a failed change would stay."""
    for statement in statements:
        conn.execute(statement)


def _to_version_2(conn: sqlite3.Connection) -> None:
    """Files of version 1 exist in four forms, which only their tables tell apart."""
    made = {str(row["name"]): str(row["sql"]) for row in conn.execute(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")}
    conn.execute("DROP INDEX approvals_of")  # it had the same name and fewer columns
    if " via " not in made["approvals"]:
        conn.execute("ALTER TABLE approvals ADD COLUMN via TEXT NOT NULL DEFAULT ''")
    _set_aside(conn, "notices")
    _set_aside(conn, "audit")
    kept = {str(row["name"]) for row in conn.execute("SELECT name FROM sqlite_master")}
    _execute_each(conn, (statement for statement in SCHEMA if _made_by(statement) not in
                         {"", *kept}))
    conn.execute(
        """INSERT INTO notices
           SELECT nonce, CASE kind WHEN 'told' THEN 'news' ELSE kind END, ask_id, text, person_id,
                  platform, user_id, chat_id, chat_type, thread_id, made_at, sent_at, shown_at
             FROM old_notices""")
    if " chain " in made["audit"]:
        conn.execute("INSERT INTO audit SELECT * FROM old_audit")
    else:
        _chain_all(conn)
    _execute_each(conn, ("DROP TABLE old_notices", "DROP TABLE old_audit"))
    if "lineage" not in made:  # by the terms of that time
        _index_all(conn)


def _set_aside(conn: sqlite3.Connection, table: str) -> None:
    """Keep a table's rows under another name, and free its own and its indexes' names.

    For what SQLite cannot change in place: a CHECK, an AUTOINCREMENT.
    """
    indexes = conn.execute("""SELECT name FROM sqlite_master WHERE type = 'index'
                               AND tbl_name = :table AND sql IS NOT NULL""", {"table": table})
    _execute_each(conn, (f"DROP INDEX {row['name']}" for row in indexes.fetchall()))
    conn.execute(f"ALTER TABLE {table} RENAME TO old_{table}")


def _made_by(statement: str) -> str:
    """The table or index that a statement of the schema makes; "" for none."""
    found = re.match(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX) (\w+)", statement)
    return found.group(1) if found else ""


def _chain_all(conn: sqlite3.Connection) -> None:
    """Chain rows that were written without one; it shows what is changed from now on."""
    chain = ""
    for row in conn.execute("SELECT * FROM old_audit ORDER BY audit_id"):
        values = _chained(row)
        chain = _link(chain, values)
        conn.execute(_INSERT_AUDIT, (*values, chain))


def _index_all(conn: sqlite3.Connection) -> None:
    """Write the recall index afresh: its terms have changed."""
    conn.execute("DELETE FROM terms")
    for row in conn.execute(
            """SELECT person_id AS space, n, topic || ' ' || text AS text FROM facts
               UNION ALL SELECT :shared, n, text FROM shared_facts""",
            {"shared": SHARED_SPACE}):
        Tx(conn, str).index(space=str(row["space"]), n=int(row["n"]), text=str(row["text"]))


# Entry n takes a file of version n + 1 to the next one. Released entries are never edited.
UPGRADES: tuple[Callable[[sqlite3.Connection], None], ...] = (_to_version_2,)
SCHEMA_VERSION = len(UPGRADES) + 1


def _roll_back(conn: sqlite3.Connection) -> None:
    if conn.in_transaction:  # a full disk has already ended it
        conn.execute("ROLLBACK")


def _use_wal(conn: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite does not wait for others here, so a busy file is waited for by hand."""
    for _ in range(_WAL_TRIES):
        with suppress(sqlite3.OperationalError):
            conn.execute("PRAGMA journal_mode = WAL")
            return
        conn.execute("BEGIN IMMEDIATE")  # waits for the writer, within the timeout
        conn.execute("ROLLBACK")
    conn.execute("PRAGMA journal_mode = WAL")


class _Older(Exception):
    """The file is of an older version."""


def _connect(path: Path, *, upgrade: bool = False) -> sqlite3.Connection:
    """A connection to a file of this version; only `upgrade` makes an older one that."""
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False,
                           timeout=BUSY_TIMEOUT_S)
    try:
        conn.row_factory = sqlite3.Row
        version = _check_ours(conn, path)
        if 0 < version < SCHEMA_VERSION and not upgrade:
            raise _Older
        _use_wal(conn)                               # readers and the writer don't stop each other
        conn.execute("PRAGMA synchronous = NORMAL")  # WAL: a power cut loses no committed order
        conn.execute("PRAGMA wal_autocheckpoint = 0")  # a thread does it, not somebody's turn
        conn.execute("PRAGMA journal_size_limit = 0")  # so that the log's length says what is in it
        conn.execute("PRAGMA foreign_keys = ON")     # off by default in SQLite
        conn.execute("PRAGMA trusted_schema = OFF")  # nothing in the file may call functions
        _migrate(conn, version, path)
    except BaseException:
        conn.close()
        raise
    return conn


class _Upgrade(threading.Thread):
    """Brings an older file up to date beside the calls, which would be given up on in the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="manyhands-upgrade", daemon=True)
        self._path = path
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            _connect(self._path, upgrade=True).close()
        except Exception as error:  # raised again by whoever waits for the upgrade
            self.error = error


def _fold(opened: tuple[Path, int, int]) -> None:
    """Write the log's pages into the file; nobody waits for it, unless the log is very long.

    A log of which every page has been written is begun anew by the next writer. Somebody who
    reads for a while (a backup) keeps it from that; then nothing is gained by waiting for long.
    """
    path = opened[0]
    try:
        if _identity_of(path) != opened:
            return
        conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True,
                               isolation_level=None, timeout=_FOLD_PATIENCE_S)
        try:
            _, pages, written = conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            page_bytes = conn.execute("PRAGMA page_size").fetchone()[0]
            if written < pages and pages * page_bytes >= _LONG_LOG_BYTES:
                conn.execute("PRAGMA wal_checkpoint(RESTART)")
        finally:
            conn.close()
    except sqlite3.Error as error:
        log.warning("manyhands: the store's log was not folded in: %s", error)


def _identity_of(path: Path) -> tuple[Path, int, int]:
    """Which file stands under this path now; zeros for none."""
    try:
        found = path.stat()
    except OSError:
        return path, 0, 0
    return path, found.st_dev, found.st_ino


class _Kept:
    """What has been read of the roster, for as long as nobody has changed what it came from.

    Two things tell: SQLite's `data_version` changes with every commit of another connection, and
    the connection's own `total_changes` with every row that is written here. Rows that nothing
    kept here comes from (the audit, tokens, who spoke) are `expected` and change nothing.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[Hashable, ...], Any] = {}
        self.head: tuple[int, str] | None = None  # of the audit
        self.expected = -1  # what `total_changes` is while the answers hold
        self._version: int | None = None

    def begin(self, conn: sqlite3.Connection) -> None:
        """A transaction has begun: drop what another connection may have changed."""
        version = conn.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.forget()
            self._version = version
        self.expected = conn.total_changes

    def end(self, conn: sqlite3.Connection) -> None:
        """It has been committed; what it wrote itself may have changed an answer."""
        if conn.total_changes != self.expected:
            self.forget()

    def forget(self) -> None:
        self.answers.clear()
        self.head = self._version = None


class Store:
    """One connection behind one lock, opened at first use.

    The host runs hooks on fresh threads, so a connection per thread would reopen the file on every
    call. Other processes are met by WAL and a bounded busy timeout.
    """

    def __init__(self, path: Callable[[], Path], *, clean: Callable[[str], str]) -> None:
        """`path` is called at first use; `clean` makes foreign text safe for an audit row."""
        self._path = path
        self._clean = clean
        self._lock = threading.RLock()
        self._conn: sqlite3.Connection | None = None
        self._opened: tuple[Path, int, int] = (Path(), 0, 0)
        self._busy_ms = 0
        self._deferred: deque[dict[str, Any]] = deque(maxlen=1000)
        self._kept = _Kept()
        self._commits = 0
        self._folder: threading.Thread | None = None
        self._upgrade: _Upgrade | None = None

    @contextmanager
    def transaction(self, *, patience_s: float | None = None) -> Iterator[Tx]:
        """Commit on return, roll back on any exception. Does not nest: pass the tx down.

        `patience_s` bounds how long a busy file and a busy thread are each waited for, when that
        has to be less than usual. Raises StoreError (StoreBusy, StoreUnusable) for whatever
        SQLite cannot do.
        """
        self._acquire(LOCK_TIMEOUT_S if patience_s is None else patience_s)
        try:
            conn = self._idle(patience_s)
            self._wait_at_most(conn, patience_s)
            try:
                conn.execute("BEGIN IMMEDIATE")
                self._kept.begin(conn)
                tx = Tx(conn, self._clean, self._kept)
                written = self._write_deferred(tx) if self._deferred else []
                yield tx
                conn.execute("COMMIT")
                self._kept.end(conn)
            except BaseException:
                self._undo(conn)
                raise
            self._committed(tx, written)
        except _TROUBLE as error:
            raise self._ours(error) from error
        finally:
            self._lock.release()

    def _undo(self, conn: sqlite3.Connection) -> None:
        self._kept.forget()
        try:
            _roll_back(conn)
        except sqlite3.Error:
            self._drop()  # or its transaction would stay open for good

    def _committed(self, tx: Tx, written: list[dict[str, Any]]) -> None:
        for row in written:
            with suppress(ValueError):  # meanwhile a full queue has let go of it
                self._deferred.remove(row)
        for callback in tx.after_commit:
            callback()
        if self._commits % _LOOK_EVERY == 0:  # the first as well: a killed process left a log
            self._fold_log()
        self._commits += 1

    @contextmanager
    def durable_transaction(self) -> Iterator[Tx]:
        """A transaction whose commit survives a power cut: spending a grant is not redone."""
        self._acquire(LOCK_TIMEOUT_S)
        try:
            try:
                self._idle().execute("PRAGMA synchronous = FULL")  # refused inside a transaction
            except _TROUBLE as error:
                raise self._ours(error) from error
            try:
                with self.transaction() as tx:
                    yield tx
            finally:
                if self._conn is not None:
                    with suppress(sqlite3.Error):
                        self._conn.execute("PRAGMA synchronous = NORMAL")
        finally:
            self._lock.release()

    def verify_audit(self) -> Verified:
        """Walk the whole chain, in short transactions so that nobody waits for it."""
        with self.transaction() as tx:
            last, chain = tx.audit_base()
        rows, first = 0, last + 1
        while True:
            with self.transaction() as tx:
                batch = tx.audit_after(audit_id=last, limit=_VERIFY_ROWS)
            for row in batch:
                if row["audit_id"] != last + 1 or not _follows(chain, row):
                    return Verified(rows, first, last, chain, last + 1)
                last, chain, rows = int(row["audit_id"]), str(row["chain"]), rows + 1
            if len(batch) < _VERIFY_ROWS:
                return Verified(rows, first, last, chain, None)

    def defer(self, *, at: float, kind: str, event: str, person_id: str = "", tool: str = "",
              code: str = "", detail: str = "") -> None:
        """Keep an owner's audit row that could not be written; the next transaction writes it."""
        self._deferred.append({"now": at, "kind": kind, "event": event, "person_id": person_id,
                               "tool": tool, "code": code, "detail": detail})

    def close(self) -> None:
        if self._folder is not None:
            self._folder.join(LOCK_TIMEOUT_S)
        self._acquire(LOCK_TIMEOUT_S)
        try:
            self._drop()
        finally:
            self._lock.release()

    def _fold_log(self) -> None:
        """Start folding a long log into the file, on a thread and a connection of its own."""
        try:
            length = Path(f"{self._opened[0]}-wal").stat().st_size
        except OSError:
            return
        if length >= _LOG_BYTES and (self._folder is None or not self._folder.is_alive()):
            folder = threading.Thread(target=_fold, args=(self._opened,),
                                      name="manyhands-checkpoint", daemon=True)
            try:
                folder.start()
            except RuntimeError as error:  # no thread to be had, or the interpreter is ending
                log.warning("manyhands: the store's log was not folded in: %s", error)
            else:
                self._folder = folder

    def _acquire(self, patience_s: float) -> None:
        if not self._lock.acquire(timeout=patience_s):
            raise StoreBusy("another thread held the store for too long")

    def _ours(self, error: Exception) -> StoreError:
        """SQLite's and the file system's errors as ours; a broken connection is dropped."""
        path = self._opened[0]
        if isinstance(error, sqlite3.OperationalError):
            name = getattr(error, "sqlite_errorname", "") or ""
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                return StoreBusy(f"the store is busy ({error})",
                                 f"Another program holds {path}; close it, or wait for it.")
            self._drop()
            advice = next((text for code, text in _ADVICE.items() if name.startswith(code)), _SPACE)
            return StoreError(f"the store cannot be used ({error})", advice.format(path=path))
        if isinstance(error, sqlite3.IntegrityError):
            return StoreError(f"the store refused a row ({error})")
        if isinstance(error, sqlite3.ProgrammingError):
            self._drop()
            return StoreError(f"the store was closed or misused ({error})")
        if isinstance(error, sqlite3.Error):
            self._drop()
            return StoreUnusable(f"the store is damaged or not a database ({error})",
                                 f"{path} was left as it is. Put a backup in its place, or move it "
                                 "away to begin with an empty one.")
        if isinstance(error, OSError):
            return StoreError(f"the store's place cannot be used ({error})",
                              _ADVICE["SQLITE_CANTOPEN"].format(path=path))
        return StoreError(f"the store cannot hold a value ({error})")  # half a pair, 2**63

    def _wait_at_most(self, conn: sqlite3.Connection, patience_s: float | None) -> None:
        wanted = _BUSY_MS if patience_s is None else \
            max(0, min(_BUSY_MS, round(patience_s * 1000)))
        if wanted != self._busy_ms:
            conn.execute(f"PRAGMA busy_timeout = {wanted:d}")
            self._busy_ms = wanted

    def _idle(self, patience_s: float | None = None) -> sqlite3.Connection:
        if self._conn is not None and self._opened != _identity_of(self._opened[0]):
            self._drop()
            raise StoreError("the store's file has been moved, replaced or deleted under a running "
                             "bot", f"What is now at {self._opened[0]} is opened at the next call; "
                             "to go on with the old one, put it back.")
        conn = self._conn or self._open(BUSY_TIMEOUT_S if patience_s is None else patience_s)
        if conn.in_transaction:
            raise StoreError("a transaction is already open on this thread")
        return conn

    def _open(self, patience_s: float) -> sqlite3.Connection:
        path = self._path()
        self._opened = path, 0, 0
        if "\0" in str(path):
            raise StoreError("the store's place cannot be used",
                             "Its path has a NUL in it: look at db_path.")
        _prepare_place(path)
        _look(path)
        try:
            self._conn = _connect(path)
        except _Older:
            self._bring_up_to_date(path, patience_s)
            self._conn = _connect(path)
        self._opened, self._busy_ms = _identity_of(path), _BUSY_MS
        for mine in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            with suppress(OSError):  # a file of another account works, or fails at the first write
                if mine.stat().st_mode & 0o077:
                    mine.chmod(0o600)
        return self._conn

    def _bring_up_to_date(self, path: Path, patience_s: float) -> None:
        """Return once the file is of this version; StoreBusy while that still goes on."""
        if self._upgrade is None:
            upgrade = _Upgrade(path)
            upgrade.start()
            self._upgrade = upgrade
        self._upgrade.join(patience_s)
        if self._upgrade.is_alive():
            raise StoreBusy("the store is being brought up to date",
                            f"{path} was written by an older version and is large; wait a while.")
        error, self._upgrade = self._upgrade.error, None
        if error is not None:
            raise error

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        self._kept.forget()
        if conn is not None:
            with suppress(sqlite3.Error):
                conn.close()

    def _write_deferred(self, tx: Tx) -> list[dict[str, Any]]:
        rows = list(self._deferred)
        for row in rows:
            tx.record(**row)
        return rows


class Tx:
    """The queries, inside one open transaction. One method per query."""

    def __init__(self, conn: sqlite3.Connection, clean: Callable[[str], str],
                 kept: _Kept | None = None) -> None:
        self._conn = conn
        self._clean = clean
        self._kept = kept or _Kept()
        self.after_commit: list[Callable[[], None]] = []  # what memory may only know then

    def _one(self, sql: str, params: Mapping[str, Value]) -> Row | None:
        row: Row | None = self._conn.execute(sql, params).fetchone()
        return row

    def _all(self, sql: str, params: Mapping[str, Value]) -> list[Row]:
        return self._conn.execute(sql, params).fetchall()

    def _run(self, sql: str, params: Mapping[str, Value]) -> int:
        """Rows changed."""
        return self._conn.execute(sql, params).rowcount

    def _append(self, sql: str, params: Mapping[str, Value] | Sequence[Value]) -> None:
        """Write a row that nothing `remembered` depends on."""
        self._kept.expected += self._conn.execute(sql, params).rowcount

    def remembered(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """What `make` reads of the roster, from memory while nobody has changed a row of it.

        `make` may depend on the key and on tables that `_append` does not write, and on nothing
        else: no clock, no setting of the operator's. What it answers must not be changed.
        """
        kept = self._kept
        if self._conn.total_changes != kept.expected:
            return make()
        if key not in kept.answers:
            if len(kept.answers) >= _MAX_KEPT:
                kept.answers.clear()
            kept.answers[key] = make()
        answer: T = kept.answers[key]
        return answer

    def _number(self, sql: str, params: Mapping[str, Value]) -> int:
        row = self._one(sql, params)
        return int(row[0] or 0) if row is not None else 0

    # -- people --------------------------------------------------------------------------------

    def person_by_account(self, *, platform: str, sender_id: str) -> Row | None:
        return self._one(
            """SELECT p.person_id, p.name, p.role, p.budget, p.joined_at
                 FROM accounts AS a JOIN people AS p ON p.person_id = a.person_id
                WHERE a.platform = :platform AND a.sender_id = :sender_id""",
            {"platform": platform, "sender_id": sender_id})

    def person(self, *, person_id: str) -> Row | None:
        return self._one(
            """SELECT person_id, name, role, budget, joined_at, joined_by
                 FROM people WHERE person_id = :person_id""", {"person_id": person_id})

    def person_by_name(self, *, name_key: str) -> Row | None:
        return self._one(
            """SELECT person_id, name, role, budget, joined_at
                 FROM people WHERE name_key = :name_key""", {"name_key": name_key})

    def people(self) -> list[Row]:
        return self._all(
            """SELECT person_id, name, role, budget, joined_at FROM people
                ORDER BY CASE role WHEN 'owner' THEN 0 WHEN 'member' THEN 1
                                   WHEN 'guest' THEN 2 ELSE 3 END, name_key LIMIT 10000""", {})

    def owners(self) -> list[Row]:
        return self._all(
            """SELECT p.person_id, p.name, a.platform, a.sender_id
                 FROM people AS p JOIN accounts AS a ON a.person_id = p.person_id
                WHERE p.role = 'owner' ORDER BY p.joined_at, p.person_id LIMIT 100""", {})

    def has_owner(self) -> bool:
        return self.remembered(("has_owner",), lambda: self._one(
            "SELECT 1 FROM people WHERE role = 'owner' LIMIT 1", {}) is not None)

    def owner_count(self) -> int:
        return self._number("SELECT count(*) FROM people WHERE role = 'owner'", {})

    def add_person(self, *, person_id: str, platform: str, sender_id: str, name: str,
                   name_key: str, role: str, joined_by: str, now: float) -> None:
        self._run(
            """INSERT INTO people (person_id, name, name_key, role, budget, joined_at, joined_by)
               VALUES (:person_id, :name, :name_key, :role, NULL, :now, :joined_by)""",
            {"person_id": person_id, "name": name, "name_key": name_key, "role": role,
             "now": now, "joined_by": joined_by})
        self._run(
            """INSERT INTO accounts (platform, sender_id, person_id)
               VALUES (:platform, :sender_id, :person_id)""",
            {"platform": platform, "sender_id": sender_id, "person_id": person_id})

    def set_role(self, *, person_id: str, role: str) -> None:
        self._run("UPDATE people SET role = :role WHERE person_id = :person_id",
                  {"role": role, "person_id": person_id})

    def rename(self, *, person_id: str, name: str, name_key: str) -> None:
        self._run(
            "UPDATE people SET name = :name, name_key = :name_key WHERE person_id = :person_id",
            {"name": name, "name_key": name_key, "person_id": person_id})

    def set_budget(self, *, person_id: str, budget: int | None) -> None:
        """Tokens per UTC day; 0 is unlimited, None is the role's default."""
        self._run("UPDATE people SET budget = :budget WHERE person_id = :person_id",
                  {"budget": budget, "person_id": person_id})

    def remove_person(self, *, person_id: str) -> None:
        """The person and all that is theirs. The audit stays; shared facts lose their author."""
        mine = {"person_id": person_id}
        for sql in (
            """DELETE FROM addresses WHERE (platform, user_id) IN
               (SELECT platform, sender_id FROM accounts WHERE person_id = :person_id)""",
            """DELETE FROM attempts WHERE account IN (SELECT platform || ':' || sender_id
               FROM accounts WHERE person_id = :person_id)""",
            "DELETE FROM people WHERE person_id = :person_id",
            "DELETE FROM tool_rules WHERE subject = :person_id",
            "DELETE FROM facts WHERE person_id = :person_id",
            "DELETE FROM terms WHERE space = :person_id",
            "DELETE FROM usage WHERE person_id = :person_id",
            "DELETE FROM invites WHERE made_by = :person_id AND redeemed_at IS NULL",
            # The nonces stay: they tell what a later request of that chat must not show.
            "UPDATE notices SET text = '', ask_id = NULL WHERE person_id = :person_id",
            """UPDATE notices SET text = '', ask_id = NULL WHERE ask_id IN
               (SELECT ask_id FROM approvals WHERE person_id = :person_id)""",
            "DELETE FROM approvals WHERE person_id = :person_id",
            "UPDATE shared_facts SET author_id = NULL WHERE author_id = :person_id",
        ):
            self._run(sql, mine)

    def accounts(self, *, person_id: str) -> list[Row]:
        return self._all(
            """SELECT platform, sender_id FROM accounts
                WHERE person_id = :person_id ORDER BY platform, sender_id""",
            {"person_id": person_id})

    def census(self, *, person_id: str) -> Row | None:
        """How much else is kept of one person: sessions, tokens, invites, notices, wrong codes."""
        return self._one(
            """WITH mine (key) AS (SELECT :person_id UNION
                    SELECT platform || ':' || sender_id FROM accounts WHERE person_id = :person_id)
               SELECT (SELECT count(DISTINCT session_id) FROM sessions
                        WHERE speaker IN (SELECT key FROM mine)) AS sessions,
                      (SELECT coalesce(sum(tokens), 0) FROM usage
                        WHERE person_id = :person_id) AS tokens,
                      (SELECT count(*) FROM invites WHERE made_by = :person_id) AS invites_made,
                      (SELECT count(*) FROM invites
                        WHERE redeemed_by IN (SELECT key FROM mine)) AS invites_used,
                      (SELECT count(*) FROM notices WHERE person_id = :person_id) AS notices,
                      (SELECT count(*) FROM attempts
                        WHERE account IN (SELECT key FROM mine)) AS wrong_codes""",
            {"person_id": person_id})

    def accounts_on(self, *, platform: str) -> list[Row]:
        return self._all(
            "SELECT sender_id FROM accounts WHERE platform = :platform LIMIT 10000",
            {"platform": platform})

    def next_number(self, *, name: str) -> int:
        """1, 2, 3 … for this name; a number is never given twice."""
        row = self._one(
            """INSERT INTO counters (name, value) VALUES (:name, 1)
               ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value""",
            {"name": name})
        return int(row["value"]) if row is not None else 0

    # -- where an owner's direct chat is -------------------------------------------------------

    def learn_address(self, *, platform: str, user_id: str, chat_id: str, chat_type: str,
                      thread_id: str, now: float) -> None:
        self._run(
            """INSERT INTO addresses (platform, user_id, chat_id, chat_type, thread_id, learned_at)
               VALUES (:platform, :user_id, :chat_id, :chat_type, :thread_id, :now)
               ON CONFLICT (platform, user_id) DO UPDATE
                  SET chat_id = :chat_id, chat_type = :chat_type, thread_id = :thread_id,
                      learned_at = :now""",
            {"platform": platform, "user_id": user_id, "chat_id": chat_id,
             "chat_type": chat_type, "thread_id": thread_id, "now": now})

    def address(self, *, platform: str, user_id: str) -> Row | None:
        return self._one(
            """SELECT chat_id, chat_type, thread_id FROM addresses
                WHERE platform = :platform AND user_id = :user_id""",
            {"platform": platform, "user_id": user_id})

    # -- tool lists, settings, usage -----------------------------------------------------------

    def rules(self, *, subject: str, role_subject: str) -> list[Row]:
        return self._all(
            """SELECT subject, tool, effect FROM tool_rules
                WHERE subject IN (:subject, :role_subject) ORDER BY subject, tool""",
            {"subject": subject, "role_subject": role_subject})

    def put_rule(self, *, subject: str, tool: str, effect: str) -> None:
        self._run(
            """INSERT INTO tool_rules (subject, tool, effect) VALUES (:subject, :tool, :effect)
               ON CONFLICT (subject, tool) DO UPDATE SET effect = :effect""",
            {"subject": subject, "tool": tool, "effect": effect})

    def drop_rule(self, *, subject: str, tool: str) -> int:
        return self._run("DELETE FROM tool_rules WHERE subject = :subject AND tool = :tool",
                         {"subject": subject, "tool": tool})

    def drop_rules(self, *, subject: str) -> int:
        return self._run("DELETE FROM tool_rules WHERE subject = :subject", {"subject": subject})

    def setting(self, *, key: str) -> str | None:
        return self.remembered(("setting", key), lambda: self._setting(key))

    def _setting(self, key: str) -> str | None:
        row = self._one("SELECT value FROM settings WHERE key = :key", {"key": key})
        return None if row is None else str(row["value"])

    def put_setting(self, *, key: str, value: str) -> None:
        self._run(
            """INSERT INTO settings (key, value) VALUES (:key, :value)
               ON CONFLICT (key) DO UPDATE SET value = :value""", {"key": key, "value": value})

    def add_tokens(self, *, person_id: str, day: int, tokens: int) -> None:
        self._append(
            """INSERT INTO usage (person_id, day, tokens) VALUES (:person_id, :day, :tokens)
               ON CONFLICT (person_id, day) DO UPDATE SET tokens = tokens + :tokens""",
            {"person_id": person_id, "day": day, "tokens": tokens})

    def usage_since(self, *, day: int) -> list[Row]:
        """Tokens by person from that day on, the most first."""
        return self._all(
            """SELECT person_id, sum(tokens) AS tokens FROM usage WHERE day >= :day
                GROUP BY person_id ORDER BY tokens DESC, person_id LIMIT 100""", {"day": day})

    def tokens_on(self, *, person_id: str, day: int) -> int:
        return self._number(
            "SELECT tokens FROM usage WHERE person_id = :person_id AND day = :day",
            {"person_id": person_id, "day": day})

    # -- who spoke in a session ----------------------------------------------------------------

    def record_speaker(self, *, session_id: str, speaker: str, now: float) -> None:
        self._append(
            """INSERT INTO sessions (session_id, speaker, first_at, last_at)
               VALUES (:session_id, :speaker, :now, :now)
               ON CONFLICT (session_id, speaker) DO UPDATE SET last_at = :now""",
            {"session_id": session_id, "speaker": speaker, "now": now})

    def speakers(self, *, session_id: str) -> list[str]:
        rows = self._all("SELECT speaker FROM sessions WHERE session_id = :session_id LIMIT 100",
                         {"session_id": session_id})
        return [str(row["speaker"]) for row in rows]

    def record_lineage(self, *, session_id: str, account: str, chat: str, now: float) -> None:
        """Whose turn started the subagent that runs in this session, and in which chat."""
        self._run(
            """INSERT INTO lineage (session_id, account, chat, started_at)
               VALUES (:session_id, :account, :chat, :now) ON CONFLICT (session_id) DO NOTHING""",
            {"session_id": session_id, "account": account, "chat": chat, "now": now})

    def lineage(self, *, session_id: str) -> Row | None:
        return self._one("SELECT account, chat FROM lineage WHERE session_id = :session_id",
                         {"session_id": session_id})

    # -- invites, claims, wrong codes ----------------------------------------------------------

    def add_invite(self, *, code_hash: str, role: str, made_by: str, now: float,
                   expires_at: float) -> int:
        row = self._one(
            """INSERT INTO invites (code_hash, role, made_by, made_at, expires_at)
               VALUES (:code_hash, :role, :made_by, :now, :expires_at) RETURNING invite_id""",
            {"code_hash": code_hash, "role": role, "made_by": made_by, "now": now,
             "expires_at": expires_at})
        return int(row["invite_id"]) if row is not None else 0

    def live_invites(self, *, now: float) -> list[Row]:
        return self._all(
            """SELECT invite_id, code_hash, role, made_by, made_at, expires_at FROM invites
                WHERE redeemed_at IS NULL AND expires_at > :now ORDER BY +invite_id LIMIT 1000""",
            {"now": now})

    def redeem_invite(self, *, invite_id: int, redeemed_by: str, now: float) -> bool:
        """True for one caller ever, and never once it has expired."""
        return self._run(
            """UPDATE invites SET redeemed_at = :now, redeemed_by = :redeemed_by
                WHERE invite_id = :invite_id AND redeemed_at IS NULL AND expires_at > :now""",
            {"invite_id": invite_id, "redeemed_by": redeemed_by, "now": now}) == 1

    def revoke_invite(self, *, invite_id: int, now: float) -> bool:
        return self._run(
            """DELETE FROM invites
                WHERE invite_id = :invite_id AND redeemed_at IS NULL AND expires_at > :now""",
            {"invite_id": invite_id, "now": now}) == 1

    def drop_invites(self, *, made_by: str) -> int:
        """Whoever may no longer invite leaves no open invite behind."""
        return self._run("DELETE FROM invites WHERE made_by = :made_by AND redeemed_at IS NULL",
                         {"made_by": made_by})

    def put_claim(self, *, code_hash: str, now: float, expires_at: float) -> None:
        """The one live claim code; an earlier one stops working."""
        self._run("DELETE FROM claims WHERE used_at IS NULL", {})
        self._run(
            """INSERT INTO claims (code_hash, made_at, expires_at)
               VALUES (:code_hash, :now, :expires_at)""",
            {"code_hash": code_hash, "now": now, "expires_at": expires_at})

    def live_claims(self, *, now: float) -> list[Row]:
        return self._all(
            """SELECT code_hash FROM claims WHERE used_at IS NULL AND expires_at > :now
                ORDER BY made_at LIMIT 10""", {"now": now})

    def use_claim(self, *, code_hash: str, now: float) -> bool:
        return self._run(
            """UPDATE claims SET used_at = :now
                WHERE code_hash = :code_hash AND used_at IS NULL AND expires_at > :now""",
            {"code_hash": code_hash, "now": now}) == 1

    def add_attempt(self, *, account: str, now: float, keep_s: float) -> None:
        self._run("DELETE FROM attempts WHERE at <= :old", {"old": now - keep_s})
        self._run("INSERT INTO attempts (account, at) VALUES (:account, :now)",
                  {"account": account, "now": now})

    def attempts_since(self, *, account: str, since: float) -> list[float]:
        rows = self._all(
            "SELECT at FROM attempts WHERE account = :account AND at > :since ORDER BY at LIMIT 50",
            {"account": account, "since": since})
        return [float(row["at"]) for row in rows]

    # -- asks and grants -----------------------------------------------------------------------

    def expire_asks(self, *, now: float) -> list[Row]:
        """Close every ask and grant whose time is over; what was closed, for the audit.

        Written down, so that a clock that jumps back later revives nothing.
        """
        self._run(
            """UPDATE approvals SET uses_left = 0
                WHERE uses_left > 0 AND grant_until <= :now""", {"now": now})
        return self._all(
            """UPDATE approvals SET closed_at = :now, outcome = 'expired'
                WHERE closed_at IS NULL AND expires_at <= :now
            RETURNING ask_id, code, person_id, tool""", {"now": now})

    def cut_ended_asks(self, *, before: float) -> None:
        """Keep only the beginning of what was asked at length and ended before then.

        A few at a time: each new ask makes room for itself. 4,000 characters is where the index
        begins; 500 stay below that whatever has to be escaped in them.
        """
        self._run(
            """UPDATE approvals SET args_json = json_object('arguments', substr(args_json, 1, 500)
                      || '… (' || length(args_json) || ' characters; the rest was not kept)')
                WHERE ask_id IN (SELECT ask_id FROM approvals
                                  WHERE closed_at IS NOT NULL AND length(args_json) > 4000
                                    AND closed_at < :before AND uses_left = 0 LIMIT 5)""",
            {"before": before})

    def asks_of(self, *, person_id: str, limit: int) -> list[Row]:
        """All that this person ever asked for, newest first."""
        return self._all(
            self._ASK + "WHERE person_id = :person_id ORDER BY ask_id DESC LIMIT :limit",
            {"person_id": person_id, "limit": limit})

    def code_in_use(self, *, code: str, now: float) -> bool:
        """True while `code` may still be remembered: it is not given again for 30 days."""
        return self._one(
            "SELECT 1 FROM approvals WHERE code = :code AND parked_at > :since LIMIT 1",
            {"code": code, "since": now - CODE_REUSE_S}) is not None

    def park(self, *, code: str, kind: str, person_id: str, tool: str, args_json: str,
             args_digest: str, binding: str, differs: bool, via: str, chat: str, now: float,
             expires_at: float) -> int:
        """A new open ask. `via` says what stood between the person and the call; usually ""."""
        row = self._one(
            """INSERT INTO approvals (code, kind, person_id, tool, args_json, args_digest, binding,
                                      differs, via, chat, parked_at, expires_at)
               VALUES (:code, :kind, :person_id, :tool, :args_json, :args_digest, :binding,
                       :differs, :via, :chat, :now, :expires_at) RETURNING ask_id""",
            {"code": code, "kind": kind, "person_id": person_id, "tool": tool,
             "args_json": args_json, "args_digest": args_digest, "binding": binding,
             "differs": int(differs), "via": via, "chat": chat, "now": now,
             "expires_at": expires_at})
        return int(row["ask_id"]) if row is not None else 0

    _ASK = """SELECT ask_id, code, kind, person_id, tool, args_json, args_digest, binding, differs,
                     via, chat, parked_at, expires_at, shown_at, closed_at, outcome, answered_by,
                     reason, uses_left, grant_until FROM approvals """

    def ask(self, *, ask_id: int) -> Row | None:
        return self._one(self._ASK + "WHERE ask_id = :ask_id", {"ask_id": ask_id})

    def ask_by_code(self, *, code: str) -> Row | None:
        """The newest ask that ever had this code."""
        return self._one(self._ASK + "WHERE code = :code ORDER BY ask_id DESC LIMIT 1",
                         {"code": code})

    def open_ask(self, *, person_id: str, tool: str) -> Row | None:
        return self._one(
            self._ASK + """WHERE person_id = :person_id AND tool = :tool AND kind = 'tool'
                             AND closed_at IS NULL""", {"person_id": person_id, "tool": tool})

    def open_asks(self, *, person_id: str | None = None) -> list[Row]:
        """Those still waiting for an owner, oldest first; None is everybody's."""
        return self._all(
            self._ASK + """WHERE closed_at IS NULL
                             AND (:person_id IS NULL OR person_id = :person_id)
                           ORDER BY ask_id LIMIT 200""", {"person_id": person_id})

    def last_denied(self, *, person_id: str, tool: str, args_digest: str,
                    since: float) -> Row | None:
        return self._one(
            self._ASK + """WHERE person_id = :person_id AND tool = :tool AND kind = 'tool'
                             AND args_digest = :args_digest
                             AND outcome = 'denied' AND closed_at > :since
                           ORDER BY ask_id DESC LIMIT 1""",
            {"person_id": person_id, "tool": tool, "args_digest": args_digest, "since": since})

    def last_answered(self, *, person_id: str, tool: str, args_digest: str) -> Row | None:
        """This person's newest closed ask for exactly this call, to say how it ended."""
        return self._one(
            self._ASK + """WHERE person_id = :person_id AND tool = :tool AND kind = 'tool'
                             AND args_digest = :args_digest AND closed_at IS NOT NULL
                           ORDER BY ask_id DESC LIMIT 1""",
            {"person_id": person_id, "tool": tool, "args_digest": args_digest})

    def prompts_since(self, *, person_id: str, since: float) -> list[float]:
        """When this person's asks that reached an owner were parked, the host's own among them."""
        rows = self._all(
            """SELECT parked_at FROM approvals
                WHERE person_id = :person_id AND parked_at > :since
                  AND (outcome IS NULL OR outcome <> 'withdrawn') ORDER BY parked_at LIMIT 50""",
            {"person_id": person_id, "since": since})
        return [float(row["parked_at"]) for row in rows]

    def show_ask(self, *, ask_id: int, now: float, expires_at: float) -> bool:
        """Start the ask's clock when its prompt is first seen; True the first time."""
        return self._run(
            """UPDATE approvals SET shown_at = :now, expires_at = min(expires_at, :expires_at)
                WHERE ask_id = :ask_id AND closed_at IS NULL AND shown_at IS NULL
                  AND expires_at > :now""",
            {"ask_id": ask_id, "now": now, "expires_at": expires_at}) == 1

    def close_ask(self, *, ask_id: int, outcome: str, answered_by: str, reason: str, now: float,
                  uses: int = 0, grant_until: float | None = None,
                  binding: str | None = None) -> bool:
        """Answer an ask once: True for one caller ever, and never once it has expired.

        `uses` runs until `grant_until` open with an approval; `binding` replaces the ask's own.
        """
        return self._run(
            """UPDATE approvals
                  SET closed_at = :now, outcome = :outcome, answered_by = :answered_by,
                      reason = :reason, uses_left = :uses, grant_until = :grant_until,
                      binding = coalesce(:binding, binding)
                WHERE ask_id = :ask_id AND closed_at IS NULL AND expires_at > :now""",
            {"ask_id": ask_id, "outcome": outcome, "answered_by": answered_by, "reason": reason,
             "now": now, "uses": uses, "grant_until": grant_until, "binding": binding}) == 1

    def live_grants(self, *, person_id: str | None, now: float) -> list[Row]:
        """Every unspent grant of this person, None is everybody's; the first to end first."""
        return self._all(
            self._ASK + """WHERE uses_left > 0 AND grant_until > :now
                             AND (:person_id IS NULL OR person_id = :person_id)
                           ORDER BY grant_until, ask_id LIMIT 200""",
            {"person_id": person_id, "now": now})

    def end_grant(self, *, ask_id: int) -> bool:
        return self._run(
            "UPDATE approvals SET uses_left = 0 WHERE ask_id = :ask_id AND uses_left > 0",
            {"ask_id": ask_id}) == 1

    def live_grant(self, *, person_id: str, tool: str, now: float) -> Row | None:
        """Some unspent grant of this person for this tool, whatever its arguments."""
        return self._one(
            self._ASK + """WHERE person_id = :person_id AND tool = :tool AND kind = 'tool'
                             AND uses_left > 0 AND grant_until > :now
                           ORDER BY ask_id DESC LIMIT 1""",
            {"person_id": person_id, "tool": tool, "now": now})

    def spend_grant(self, *, person_id: str, tool: str, args_digest: str, now: float) -> Row | None:
        """Spend one use of a matching grant. A row for one caller per use, none once expired."""
        return self._one(
            """UPDATE approvals SET uses_left = uses_left - 1
                WHERE ask_id = (SELECT ask_id FROM approvals
                                 WHERE person_id = :person_id AND tool = :tool AND kind = 'tool'
                                   AND uses_left > 0 AND grant_until > :now
                                   AND (binding = 'tool' OR args_digest = :args_digest)
                                 ORDER BY grant_until, ask_id LIMIT 1)
                  AND uses_left > 0
            RETURNING ask_id, code, uses_left, binding""",
            {"person_id": person_id, "tool": tool, "args_digest": args_digest, "now": now})

    def end_asks(self, *, person_id: str | None, now: float) -> int:
        """Close this person's waiting asks and unspent grants; None is everybody's."""
        params = {"person_id": person_id, "now": now}
        ended = self._run(
            """UPDATE approvals SET closed_at = :now, outcome = 'withdrawn'
                WHERE closed_at IS NULL AND (:person_id IS NULL OR person_id = :person_id)""",
            params)
        return ended + self._run(
            """UPDATE approvals SET uses_left = 0
                WHERE uses_left > 0 AND (:person_id IS NULL OR person_id = :person_id)""",
            params)

    # -- notices -------------------------------------------------------------------------------

    def add_notice(self, *, nonce: str, kind: str, ask_id: int | None, text: str, person_id: str,
                   platform: str, user_id: str, chat_id: str, chat_type: str, thread_id: str,
                   now: float) -> None:
        self._run(
            """INSERT INTO notices (nonce, kind, ask_id, text, person_id, platform, user_id,
                                    chat_id, chat_type, thread_id, made_at)
               VALUES (:nonce, :kind, :ask_id, :text, :person_id, :platform, :user_id, :chat_id,
                       :chat_type, :thread_id, :now)""",
            {"nonce": nonce, "kind": kind, "ask_id": ask_id, "text": text,
             "person_id": person_id, "platform": platform, "user_id": user_id,
             "chat_id": chat_id, "chat_type": chat_type, "thread_id": thread_id, "now": now})

    _NOTICE = """SELECT nonce, kind, ask_id, text, person_id, platform, user_id, chat_id, chat_type,
                        thread_id, made_at, sent_at, shown_at FROM notices """

    def notice(self, *, nonce: str) -> Row | None:
        return self._one(self._NOTICE + "WHERE nonce = :nonce", {"nonce": nonce})

    def has_unsent_notices(self) -> bool:
        return self.remembered(("has_unsent_notices",), lambda: self._one(
            "SELECT 1 FROM notices WHERE sent_at IS NULL LIMIT 1", {}) is not None)

    def unsent_notices(self, *, since: float) -> list[Row]:
        """In the order they were made; an outcome before the call that it makes possible."""
        return self._all(
            self._NOTICE + """WHERE sent_at IS NULL AND made_at > :since
                              ORDER BY made_at, kind, nonce LIMIT 50""", {"since": since})

    def unshown_notices(self, *, ask_id: int) -> list[Row]:
        return self._all(self._NOTICE + "WHERE ask_id = :ask_id AND shown_at IS NULL",
                         {"ask_id": ask_id})

    def take_notice(self, *, nonce: str, now: float) -> bool:
        """Claim one unsent notice for injection; True for one process."""
        return self._run(
            "UPDATE notices SET sent_at = :now WHERE nonce = :nonce AND sent_at IS NULL",
            {"nonce": nonce, "now": now}) == 1

    def untake_notice(self, *, nonce: str) -> None:
        self._run("UPDATE notices SET sent_at = NULL WHERE nonce = :nonce AND shown_at IS NULL",
                  {"nonce": nonce})

    def show_notice(self, *, nonce: str, platform: str, user_id: str, now: float) -> bool:
        """Use a nonce up: True once, and only for the account it was sent to."""
        return self._run(
            """UPDATE notices SET shown_at = :now, sent_at = coalesce(sent_at, :now)
                WHERE nonce = :nonce AND platform = :platform AND user_id = :user_id
                  AND shown_at IS NULL""",
            {"nonce": nonce, "platform": platform, "user_id": user_id, "now": now}) == 1

    def known_nonces(self, nonces: Iterable[str]) -> dict[str, str]:
        """The kind of each of these nonces that a notice really has."""
        rows = self._all(
            """SELECT nonce, kind FROM notices
                WHERE nonce IN (SELECT value FROM json_each(:nonces))""",
            {"nonces": json.dumps(sorted(nonces))})
        return {str(row["nonce"]): str(row["kind"]) for row in rows}

    def undelivered_count(self, *, before: float) -> int:
        """Notices for owners that were sent before then and never came back in a turn."""
        return self._number(
            """SELECT count(*) FROM approvals AS a CROSS JOIN notices AS n ON n.ask_id = a.ask_id
                WHERE a.closed_at IS NULL AND n.shown_at IS NULL AND n.made_at < :before""",
            {"before": before})

    # -- facts ---------------------------------------------------------------------------------

    def add_fact(self, *, person_id: str, text: str, topic: str, now: float) -> int | None:
        """The fact's number for good; None when the same text is already kept."""
        key = digest(text)
        known = self._one(
            "SELECT n FROM facts WHERE person_id = :person_id AND digest = :digest",
            {"person_id": person_id, "digest": key})
        if known is not None:
            return None
        n = self.next_number(name=f"facts {person_id}")
        self._run(
            """INSERT INTO facts (person_id, n, text, topic, digest, made_at)
               VALUES (:person_id, :n, :text, :topic, :digest, :now)""",
            {"person_id": person_id, "n": n, "text": text, "topic": topic, "digest": key,
             "now": now})
        self.index(space=person_id, n=n, text=f"{topic} {text}")
        return n

    def facts(self, *, person_id: str, limit: int = MAX_FACTS) -> list[Row]:
        """Newest first."""
        return self._all(
            """SELECT n, text, topic, made_at FROM facts WHERE person_id = :person_id
                ORDER BY n DESC LIMIT :limit""", {"person_id": person_id, "limit": limit})

    def fact_count(self, *, person_id: str) -> int:
        return self._number("SELECT count(*) FROM facts WHERE person_id = :person_id",
                            {"person_id": person_id})

    def facts_at(self, *, person_id: str, numbers: Iterable[int]) -> list[Row]:
        """This person's facts of these numbers, in no order."""
        return self._all(
            """SELECT n, text, topic, made_at FROM facts WHERE person_id = :person_id
                  AND n IN (SELECT value FROM json_each(:numbers))""",
            {"person_id": person_id, "numbers": json.dumps(list(numbers))})

    def recall(self, *, person_id: str, query: str, limit: int) -> list[Row]:
        """This person's facts and the shared ones (`shared` is 1) in one ranking."""
        ranked = self.ranked(person_id=person_id, query=query)[:limit]
        rows = self._all(
            """SELECT 0 AS shared, n, text, topic, '' AS author, made_at FROM facts
                WHERE person_id = :person_id AND n IN (SELECT value FROM json_each(:own))
               UNION ALL
               SELECT 1, s.n, s.text, '', coalesce(p.name, ''), s.made_at
                 FROM shared_facts AS s LEFT JOIN people AS p ON p.person_id = s.author_id
                WHERE s.n IN (SELECT value FROM json_each(:shared))""",
            {"person_id": person_id,
             "own": json.dumps([n for space, n in ranked if space != SHARED_SPACE]),
             "shared": json.dumps([n for space, n in ranked if space == SHARED_SPACE])})
        found = {(SHARED_SPACE if row["shared"] else person_id, int(row["n"])): row
                 for row in rows}
        return [found[key] for key in ranked if key in found]

    def forget(self, *, person_id: str, n: int) -> bool:
        self._run("DELETE FROM terms WHERE space = :person_id AND n = :n",
                  {"person_id": person_id, "n": n})
        return self._run("DELETE FROM facts WHERE person_id = :person_id AND n = :n",
                         {"person_id": person_id, "n": n}) == 1

    def forget_all(self, *, person_id: str) -> int:
        self._run("DELETE FROM terms WHERE space = :person_id", {"person_id": person_id})
        return self._run("DELETE FROM facts WHERE person_id = :person_id",
                         {"person_id": person_id})

    def share(self, *, author_id: str, text: str, now: float) -> int | None:
        """The shared fact's number for good; None when the same text is already shared."""
        row = self._one(
            """INSERT INTO shared_facts (author_id, text, digest, made_at)
               VALUES (:author_id, :text, :digest, :now)
               ON CONFLICT (digest) DO NOTHING RETURNING n""",
            {"author_id": author_id, "text": text, "digest": digest(text), "now": now})
        if row is None:
            return None
        self.index(space=SHARED_SPACE, n=int(row["n"]), text=text)
        return int(row["n"])

    _SHARED = """SELECT s.n, s.text, s.author_id, p.name AS author, s.made_at
                   FROM shared_facts AS s LEFT JOIN people AS p ON p.person_id = s.author_id """

    def shared_fact(self, *, n: int) -> Row | None:
        return self._one(self._SHARED + "WHERE s.n = :n", {"n": n})

    def shared_facts(self, *, limit: int = MAX_FACTS) -> list[Row]:
        """Newest first."""
        return self._all(self._SHARED + "ORDER BY s.n DESC LIMIT :limit", {"limit": limit})

    def shared_by(self, *, author_id: str, limit: int = MAX_FACTS) -> list[Row]:
        """One author's shared facts, newest first."""
        return self._all(self._SHARED + """WHERE s.author_id = :author_id
                                           ORDER BY s.n DESC LIMIT :limit""",
                         {"author_id": author_id, "limit": limit})

    def shared_count(self, *, author_id: str) -> int:
        return self._number("SELECT count(*) FROM shared_facts WHERE author_id = :author_id",
                            {"author_id": author_id})

    def shared_facts_at(self, *, numbers: Iterable[int]) -> list[Row]:
        """The shared facts of these numbers, in no order."""
        return self._all(
            """SELECT n, text FROM shared_facts
                WHERE n IN (SELECT value FROM json_each(:numbers))""",
            {"numbers": json.dumps(list(numbers))})

    def unshare(self, *, n: int) -> bool:
        self._run("DELETE FROM terms WHERE space = :space AND n = :n",
                  {"space": SHARED_SPACE, "n": n})
        return self._run("DELETE FROM shared_facts WHERE n = :n", {"n": n}) == 1

    def index(self, *, space: str, n: int, text: str) -> None:
        self._conn.executemany(
            "INSERT OR IGNORE INTO terms (space, term, n) VALUES (:space, :term, :n)",
            [{"space": space, "term": term, "n": n} for term in terms(text)])

    def ranked(self, *, person_id: str, query: str) -> list[tuple[str, int]]:
        """(space, number) of this person's facts and the shared ones that `query` finds.

        The most relevant first; the space is the person's id or SHARED_SPACE, and no other is read.
        """
        return _by_relevance(self._all(
            """SELECT space, group_concat(n) FROM terms
                WHERE space IN (:person_id, :shared)
                  AND term IN (SELECT value FROM json_each(:terms)) GROUP BY space, term""",
            {"person_id": person_id, "shared": SHARED_SPACE,
             "terms": json.dumps(terms(query, _MAX_QUERY_TERMS))}))

    # -- the audit -----------------------------------------------------------------------------

    _AUDIT = "SELECT audit_id, at, kind, event, person_id, tool, code, detail FROM audit "

    def record(self, *, now: float, kind: str, event: str, person_id: str = "", tool: str = "",
               code: str = "", detail: str = "") -> None:
        """One row of the trail: what happened, to whom, by which code."""
        last_id, chain = self._kept.head or self.audit_head()
        clean = self._clean
        values: list[Any] = [
            last_id + 1, float(now), kind, clean(event), self._trail_key(person_id),
            tool and clean(tool), code and clean(code), detail and clean(detail)]
        chain = _link(chain, values)
        self._append(_INSERT_AUDIT, (*values, chain))
        self._kept.head = last_id + 1, chain

    def audit_head(self) -> tuple[int, str]:
        """(number, chain) of the newest row; of the checkpoint when retention left none."""
        row = self._one("SELECT audit_id, chain FROM audit ORDER BY audit_id DESC LIMIT 1", {})
        return self.audit_base() if row is None else (int(row["audit_id"]), str(row["chain"]))

    def audit_base(self) -> tuple[int, str]:
        """The checkpoint that the chain starts at: the last row that retention dropped."""
        number, _, chain = (self.setting(key="audit base") or "0 ").partition(" ")
        return int(number), chain

    def audit_after(self, *, audit_id: int, limit: int) -> list[Row]:
        return self._all(
            """SELECT audit_id, at, kind, event, person_id, tool, code, detail, chain FROM audit
                WHERE audit_id > :audit_id ORDER BY audit_id LIMIT :limit""",
            {"audit_id": audit_id, "limit": limit})

    def drop_audit(self, *, before: float, now: float, limit: int) -> int:
        """Drop so many of the oldest rows at most; the chain then starts at a checkpoint.

        A row of the future, which a wrong clock has left between old ones, goes with them. Where
        none is old nothing goes: then it is the clock of now that is wrong.
        """
        oldest = self._all("SELECT audit_id, at, chain FROM audit ORDER BY audit_id LIMIT :limit",
                           {"limit": limit})
        old = list(takewhile(
            lambda row: not before <= float(row["at"]) <= now + DAY_S, oldest))
        while old and float(old[-1]["at"]) >= before:
            old.pop()
        if old:
            self._run("DELETE FROM audit WHERE audit_id <= :last", {"last": old[-1]["audit_id"]})
            self.put_setting(key="audit base",
                             value=f"{int(old[-1]['audit_id'])} {old[-1]['chain']}")
        return len(old)

    def trail(self, *, person_id: str | None, since: float, limit: int) -> list[Row]:
        """The newest rows first; None is the whole house."""
        return list(islice(self._newest(person_id, since=since), limit))

    def _newest(self, person_id: str | None, *, since: float) -> Iterator[Row]:
        """Rows from the newest back, until so many in a row are older that the rest will be.

        Not until the first: a clock that once was wrong (a board that starts without one) leaves
        a few rows of another time between the others.
        """
        if person_id is None:
            rows = self._conn.execute(self._AUDIT + "ORDER BY audit_id DESC")
        else:
            rows = self._conn.execute(self._AUDIT + """WHERE person_id = :who
                                      ORDER BY audit_id DESC""",
                                      {"who": self._trail_key(person_id)})
        older = 0
        for row in rows:
            older = 0 if float(row["at"]) > since else older + 1
            if older == 0:
                yield row
            elif older > _OLDER_ROWS:
                return

    def _trail_key(self, person_id: str) -> str:
        """A person's id as their audit rows carry it: safe to print, and nobody else's.

        `clean` may cut what is very long, and two ids can differ in their tails only.
        """
        if len(person_id) <= _MAX_TRAIL_ID:
            return self._clean(person_id)
        return f"{self._clean(person_id[:_MAX_TRAIL_ID])}… {digest(person_id)}"

    def unidentified_since(self, *, since: float) -> int:
        """Tool calls and turns that arrived without an identity."""
        return sum(row["kind"] in ("turn", "tool") or (row["kind"] == "refusal" and
                   row["tool"] != "") for row in self._newest("", since=since))

    def trail_count(self, *, person_id: str) -> int:
        return self._number("SELECT count(*) FROM audit WHERE person_id = :who",
                            {"who": self._trail_key(person_id)})

    def story(self, *, code: str, since: float) -> list[Row]:
        """Every row of the ask that has had this code since then, oldest first."""
        return self._all(self._AUDIT + """WHERE code = :code AND at >= :since
                                          ORDER BY audit_id LIMIT 200""",
                         {"code": code, "since": since})
