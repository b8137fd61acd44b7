"""The one file: opening it, transactions, races, and whose rows a query can reach."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from support import NOON, FolderCase, StoreCase, plugin_module

TESTS = Path(__file__).resolve().parent

module = plugin_module("store")
identity = plugin_module("identity")
Store, StoreError = module.Store, module.StoreError

ANNA, BEN = "telegram:1", "telegram:2"

# What a child process does before its own lines: a store on the same file, ready, then go.
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support import NOON, plugin_module
module, identity = plugin_module("store"), plugin_module("identity")
store = module.Store(lambda: Path(sys.argv[2]), clean=identity.shown)
print("ready", flush=True)
sys.stdin.readline()
"""


def production_clean(text: str) -> str:
    return identity.shown(text, 2000)


def in_children(path: Path, lines: str, count: int) -> list[str]:
    """What `count` processes printed that ran `lines` on the same file at the same time."""
    children = [subprocess.Popen([sys.executable, "-c", CHILD + lines, str(TESTS), str(path)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(count)]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    return [child.communicate()[0].strip() for child in children]


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of `work(0)`, `work(1)`, … in threads that start together."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(number: int) -> None:
        barrier.wait()
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class FileCase(StoreCase):
    """A store, and ways to look at its file without it."""

    def raw(self, sql: str, *values: object) -> list[tuple]:
        with closing(sqlite3.connect(self.path)) as conn:
            return conn.execute(sql, values).fetchall()

    def write(self, key: str = "k", value: str = "v") -> None:
        with self.store.transaction() as tx:
            tx.put_setting(key=key, value=value)

    def read(self, key: str = "k") -> str | None:
        with self.store.transaction() as tx:
            return tx.setting(key=key)

    def state(self) -> dict[str, tuple[bytes, int, int]]:
        """Everything in the folder: bytes, mode, time of change."""
        return {found.name: (found.read_bytes(), found.stat().st_mode, found.stat().st_mtime_ns)
                for found in self.folder.iterdir() if found.is_file()}


class Opening(FileCase):
    def test_constructing_a_store_opens_and_asks_for_nothing(self):
        asked = []
        Store(lambda: asked.append(1) or self.path, clean=str)
        self.assertEqual((asked, list(self.folder.iterdir())), ([], []))

    def test_the_first_transaction_makes_a_file_of_this_schema(self):
        self.write()
        self.assertEqual(self.raw("PRAGMA user_version"), [(module.SCHEMA_VERSION,)])
        self.assertEqual(self.raw("PRAGMA application_id"), [(module.APPLICATION_ID,)])
        self.assertEqual(self.raw("PRAGMA journal_mode"), [("wal",)])

    def test_every_table_of_the_specification_is_there(self):
        self.write()
        tables = {name for (name,) in self.raw("SELECT name FROM sqlite_master")}
        self.assertLessEqual({"people", "accounts", "facts", "shared_facts", "audit", "sessions",
                              "invites", "approvals", "settings"}, tables)

    def test_a_file_of_this_schema_is_opened_again_with_what_it_holds(self):
        self.write(value="kept")
        self.store.close()
        again = Store(lambda: self.path, clean=str)
        self.addCleanup(again.close)
        with again.transaction() as tx:
            self.assertEqual(tx.setting(key="k"), "kept")

    def test_a_closed_store_opens_again_at_the_next_transaction(self):
        self.write()
        self.store.close()
        self.store.close()
        self.assertEqual(self.read(), "v")

    def test_an_empty_file_becomes_ours(self):
        self.path.touch()
        self.write()
        self.assertEqual(self.read(), "v")

    def test_a_blank_database_becomes_ours(self):
        self.raw("VACUUM")
        self.write()
        self.assertEqual(self.read(), "v")

    def assert_refused_untouched(self, error: type = module.StoreUnusable) -> str:
        before = self.state()
        with self.assertRaises(error) as caught:
            self.write()
        self.store.close()
        self.assertEqual(self.state(), before)
        return str(caught.exception)

    def test_a_newer_file_is_refused_untouched_and_the_error_says_so(self):
        self.write()
        self.store.close()
        self.raw(f"PRAGMA user_version = {module.SCHEMA_VERSION + 1}")
        said = self.assert_refused_untouched()
        self.assertIn("newer manyhands", said)
        self.assertIn(str(self.path), said)

    def test_a_file_that_another_process_has_just_made_newer_is_left_as_it_is(self):
        """Between the look at its version and the lock."""
        self.write()
        self.store.close()
        seen = module._check_ours

        def then_newer(conn: sqlite3.Connection, path: Path) -> int:
            version = seen(conn, path)
            with closing(sqlite3.connect(self.path)) as other, other:
                other.execute(f"PRAGMA user_version = {module.SCHEMA_VERSION + 1}")
            return version - 1

        with mock.patch.object(module, "_check_ours", then_newer), \
                self.assertRaises(module.StoreUnusable):
            self.write(value="x")
        self.assertEqual(self.raw("PRAGMA user_version"), [(module.SCHEMA_VERSION + 1,)])

    def test_a_newer_file_is_left_as_a_crashed_writer_left_it(self):
        """Its log is not folded in either: that is for the version that wrote it."""
        self.write()
        self.store.close()
        subprocess.run([sys.executable, "-c", f"""
import os, sqlite3
conn = sqlite3.connect({str(self.path)!r}, isolation_level=None)
conn.execute("PRAGMA user_version = {module.SCHEMA_VERSION + 1}")
os._exit(0)"""], check=True)
        self.assertTrue((self.folder / "manyhands.db-wal").stat().st_size)
        before = self.path.read_bytes(), (self.folder / "manyhands.db-wal").read_bytes()
        with self.assertRaises(module.StoreUnusable):
            self.write()
        after = self.path.read_bytes(), (self.folder / "manyhands.db-wal").read_bytes()
        self.assertEqual(before, after)

    def test_whatever_is_neither_blank_nor_ours_is_refused_untouched(self):
        ours = module.APPLICATION_ID
        for tables, version, app in itertools.product(
                (False, True), (0, 1, 7), (0, ours, ours + 1)):
            if (tables, version, app) == (False, 0, 0) or (version == 1 and app == ours):
                continue
            with self.subTest(tables=tables, user_version=version, application_id=app):
                self.path.unlink(missing_ok=True)
                with closing(sqlite3.connect(self.path)) as conn:
                    if tables:
                        conn.execute("CREATE TABLE theirs (x)")
                    conn.execute(f"PRAGMA user_version = {version}")
                    conn.execute(f"PRAGMA application_id = {app}")
                    conn.commit()
                    conn.execute("VACUUM")
                self.assert_refused_untouched()

    def test_a_foreign_file_keeps_its_rollback_journal_mode_and_its_mode_bits(self):
        self.raw("CREATE TABLE theirs (x)")
        self.path.chmod(0o644)
        self.assertIn("another program", self.assert_refused_untouched())
        self.assertEqual(self.raw("PRAGMA journal_mode"), [("delete",)])

    def test_a_file_that_is_no_database_is_refused_untouched_whatever_its_length(self):
        for length in (1, 2, 15, 16, 17, 99, 100, 511, 512, 4096, 70_000):
            for filler in (b"\0", b"garbage ", b"SQLite format 3"):
                with self.subTest(length=length, filler=filler):
                    self.path.write_bytes((filler * length)[:length])
                    self.assert_refused_untouched()

    def test_a_damaged_file_of_ours_is_not_replaced(self):
        self.write()
        self.store.close()
        whole = self.path.read_bytes()
        for damaged in (b"\0" * 16 + whole[16:], whole[:100], whole[:100] + b"\xff" * 5000):
            with self.subTest(length=len(damaged)):
                self.path.write_bytes(damaged)
                with self.assertRaises(StoreError):
                    self.write()
                self.store.close()
                self.assertEqual(self.path.read_bytes(), damaged)

    def test_processes_that_make_the_same_new_file_at_once_all_succeed(self):
        path = self.folder / "new" / "deep" / "manyhands.db"
        said = in_children(path, """
with store.transaction() as tx:
    tx.record(now=NOON, kind="turn", event="t")
print("ok")""", 4)
        self.assertEqual(said, ["ok"] * 4)
        self.path = path
        self.assertEqual(self.raw("SELECT count(*) FROM audit"), [(4,)])


class Modes(FileCase):
    def mode(self, path: Path) -> int:
        return path.stat().st_mode & 0o777

    def test_the_file_is_0600_and_so_are_its_log_and_index(self):
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.write()
        self.assertEqual({f.name: self.mode(f) for f in self.folder.iterdir()},
                         {"manyhands.db": 0o600, "manyhands.db-wal": 0o600,
                          "manyhands.db-shm": 0o600})

    def test_every_folder_that_it_makes_is_0700(self):
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.path = self.folder / "a" / "b" / "manyhands.db"
        self.write()
        self.assertEqual([self.mode(f) for f in (self.folder / "a", self.folder / "a" / "b")],
                         [0o700, 0o700])

    def test_a_folder_that_was_there_keeps_its_mode(self):
        place = self.folder / "there"
        place.mkdir(mode=0o755)
        place.chmod(0o755)
        self.path = place / "manyhands.db"
        self.write()
        self.assertEqual(self.mode(place), 0o755)

    def test_a_file_of_ours_that_others_could_read_is_closed_to_them_with_its_log(self):
        self.write()
        self.store.close()
        self.path.chmod(0o644)
        self.write()
        self.assertEqual({self.mode(f) for f in self.folder.iterdir()}, {0o600})


class Contract20NothingIsHalfAppliedOrLost(FileCase):
    def test_any_exception_rolls_everything_back(self):
        self.write(value="before")
        for error in (ValueError("x"), KeyboardInterrupt(), SystemExit(1), GeneratorExit(),
                      MemoryError()):
            with self.subTest(error=type(error).__name__):
                with self.assertRaises(type(error)), self.store.transaction() as tx:
                    tx.put_setting(key="k", value="after")
                    raise error
                self.assertEqual(self.read(), "before")

    def test_a_statement_that_fails_leaves_nothing_half_applied(self):
        with self.assertRaises(StoreError), self.store.transaction() as tx:
            tx.put_setting(key="k", value="v")
            tx.put_rule(subject=ANNA, tool="t", effect="no such effect")
        self.assertIsNone(self.read())

    def test_a_person_whose_account_is_taken_is_not_half_added(self):
        self.add(ANNA, "member")
        with self.assertRaises(StoreError), self.store.transaction() as tx:
            tx.add_person(person_id="telegram:new", platform="telegram", sender_id="1", name="N",
                          name_key="n", role="guest", joined_by="t", now=NOON)
        with self.store.transaction() as tx:
            self.assertIsNone(tx.person(person_id="telegram:new"))

    def test_what_sqlite_cannot_hold_is_a_store_error_and_leaves_nothing(self):
        def add_tokens(tx, tokens):
            tx.add_tokens(person_id=ANNA, day=1, tokens=tokens)
        cases = {
            "half a surrogate pair": lambda tx: tx.add_fact(
                person_id=ANNA, text="\ud83d", topic="", now=NOON),
            "an id with one": lambda tx: tx.person(person_id="telegram:\udc00"),
            "a number too large": lambda tx: add_tokens(tx, 2 ** 63),
            "a fact's number too large": lambda tx: tx.forget(person_id=ANNA, n=10 ** 30)}
        for name, act in cases.items():
            with self.subTest(name):
                with self.assertRaises(StoreError), self.store.transaction() as tx:
                    tx.put_setting(key="k", value="v")
                    act(tx)
                self.assertIsNone(self.read())

    def test_a_transaction_does_not_nest_and_the_outer_one_goes_on(self):
        for inner in (self.store.transaction, self.store.durable_transaction):
            for outer in (self.store.transaction, self.store.durable_transaction):
                with self.subTest(inner=inner.__name__, outer=outer.__name__):
                    with outer() as tx:
                        tx.put_setting(key="k", value=outer.__name__)
                        with self.assertRaises(StoreError), inner():
                            self.fail("it nested")
                    self.assertEqual(self.read(), outer.__name__)

    def test_only_a_durable_transaction_waits_for_the_disk(self):
        for opened, level in ((self.store.transaction, 1), (self.store.durable_transaction, 2),
                              (self.store.transaction, 1)):
            with opened() as tx:
                self.assertEqual(tx._number("PRAGMA synchronous", {}), level)

    def test_a_durable_transaction_commits_and_rolls_back_like_any_other(self):
        with self.store.durable_transaction() as tx:
            tx.put_setting(key="k", value="v")
        with self.assertRaises(KeyError), self.store.durable_transaction() as tx:
            tx.put_setting(key="k", value="w")
            raise KeyError
        self.assertEqual(self.read(), "v")

    def test_a_commit_is_seen_by_another_connection_at_once(self):
        self.write()
        self.assertEqual(self.raw("SELECT value FROM settings WHERE key = 'k'"), [("v",)])

    def test_threads_take_turns_on_one_store(self):
        def work(number: int) -> None:
            for _ in range(20):
                with self.store.transaction() as tx:
                    tx.add_tokens(person_id=ANNA, day=1, tokens=1)
        at_once(16, work)
        with self.store.transaction() as tx:
            self.assertEqual(tx.tokens_on(person_id=ANNA, day=1), 320)

    def test_processes_that_write_at_once_lose_nothing(self):
        said = in_children(self.path, """
for number in range(40):
    with store.transaction() as tx:
        tx.add_tokens(person_id="p:1", day=1, tokens=1)
        tx.record(now=NOON, kind="tokens", event="e", person_id="p:1")
print("ok")""", 3)
        self.assertEqual(said, ["ok"] * 3)
        with self.store.transaction() as tx:
            self.assertEqual(tx.tokens_on(person_id="p:1", day=1), 120)
            self.assertEqual(tx.trail_count(person_id="p:1"), 120)


class Remembered(FileCase):
    """What is kept in memory of the roster is what the file says, whoever changed it."""

    def role(self, tx: Any, person_id: str = ANNA) -> str:
        return tx.remembered(("role", person_id), lambda: self.asked(tx, person_id))

    def asked(self, tx: Any, person_id: str) -> str:
        self.questions += 1
        row = tx.person(person_id=person_id)
        return "" if row is None else str(row["role"])

    def setUp(self) -> None:
        super().setUp()
        self.questions = 0
        self.add(ANNA, "member")
        self.assertEqual(self.seen(), "member")
        self.questions = 0

    def seen(self) -> str:
        with self.store.transaction() as tx:
            return self.role(tx)

    def test_it_is_asked_once_while_nothing_it_depends_on_changes(self):
        with self.store.transaction() as tx:
            tx.record(now=NOON, kind="turn", event="t")
            tx.add_tokens(person_id=ANNA, day=1, tokens=5)
            tx.record_speaker(session_id="s", speaker=ANNA, now=NOON)
            self.assertEqual(self.role(tx), "member")
        self.assertEqual((self.seen(), self.questions), ("member", 0))

    def test_a_change_is_seen_in_its_own_transaction_and_in_the_next(self):
        with self.store.transaction() as tx:
            tx.set_role(person_id=ANNA, role="guest")
            self.assertEqual(self.role(tx), "guest")
        self.assertEqual(self.seen(), "guest")

    def test_a_change_that_was_rolled_back_is_never_seen_again(self):
        with self.assertRaises(ZeroDivisionError), self.store.transaction() as tx:
            tx.set_role(person_id=ANNA, role="owner")
            self.assertEqual(self.role(tx), "owner")
            raise ZeroDivisionError
        self.assertEqual(self.seen(), "member")

    def test_another_process_s_change_is_seen_at_the_next_transaction(self):
        in_children(self.path, f"""
with store.transaction() as tx:
    tx.set_role(person_id={ANNA!r}, role="blocked")
print("done")""", 1)
        self.assertEqual(self.seen(), "blocked")

    def test_a_row_written_behind_its_back_is_seen_at_once(self):
        with self.store.transaction() as tx:
            tx._conn.execute("UPDATE people SET role = 'blocked'")
            self.assertEqual(self.role(tx), "blocked")
        self.assertEqual(self.seen(), "blocked")

    def test_a_file_that_takes_the_place_of_this_one_is_read_afresh(self):
        self.store.close()
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute("UPDATE people SET role = 'guest'")
        self.assertEqual(self.seen(), "guest")

    def test_a_new_notice_is_seen_by_the_store_that_wrote_it_and_by_any_other(self):
        other = Store(lambda: self.path, clean=str)
        self.addCleanup(other.close)
        for store in (self.store, other):
            with store.transaction() as tx:
                self.assertFalse(tx.has_unsent_notices())
        with self.store.transaction() as tx:
            tx.add_notice(nonce="n", kind="news", ask_id=None, text="", person_id=ANNA,
                          platform="telegram", user_id="1", chat_id="1", chat_type="dm",
                          thread_id="", now=NOON)
            self.assertTrue(tx.has_unsent_notices())
        for store in (self.store, other):
            with store.transaction() as tx:
                self.assertTrue(tx.has_unsent_notices())

    def test_the_number_of_answers_is_bounded(self):
        with self.store.transaction() as tx:
            for number in range(3 * module._MAX_KEPT):
                self.role(tx, f"telegram:{number}")
            self.assertLessEqual(len(self.store._kept.answers), module._MAX_KEPT)

    def test_two_stores_that_write_at_random_always_see_what_the_file_says(self):
        draw = random.Random(7)
        other = Store(lambda: self.path, clean=str)
        self.addCleanup(other.close)
        for step in range(600):
            store = draw.choice((self.store, other))
            with suppress(ZeroDivisionError), store.transaction() as tx:
                for _ in range(draw.randrange(4)):
                    self.one_step(tx, draw, step)
                if draw.random() < 0.2:
                    raise ZeroDivisionError
            for looked in (self.store, other):
                with looked.transaction() as tx:
                    mode = tx._one("SELECT value FROM settings WHERE key = 'mode'", {})
                    self.assertEqual(tx.setting(key="mode"), mode and mode["value"])
                    self.assertEqual(tx.has_owner(), tx._one(
                        "SELECT 1 FROM people WHERE role = 'owner'", {}) is not None)
                    for person in (ANNA, BEN):
                        self.assertEqual(self.role(tx, person), self.asked(tx, person))
        self.assertIsNone(self.store.verify_audit().broken)

    def one_step(self, tx: Any, draw: random.Random, step: int) -> None:
        person = draw.choice((ANNA, BEN))
        known = tx.person(person_id=person) is not None
        act = draw.randrange(6)
        if act == 0:
            tx.set_role(person_id=person, role=draw.choice(("owner", "member", "guest")))
        elif act == 1:
            tx.put_setting(key="mode", value=draw.choice(("normal", "paused", "locked")))
        elif act == 2 and known:
            tx.remove_person(person_id=person)
        elif act == 2:
            tx.add_person(person_id=person, platform="telegram", sender_id=person[-1],
                          name=person, name_key=person, role="guest", joined_by="", now=NOON)
        elif act == 3:
            self.role(tx, person)
        elif act == 4:
            tx.add_tokens(person_id=person, day=1, tokens=1)
        else:
            tx.record(now=NOON, kind="turn", event=f"step {step}")


class TheLog(FileCase):
    """WAL's log is folded into the file by a thread, and never by whoever commits."""

    def write_much(self, rows: int) -> None:
        for number in range(rows):
            with self.store.transaction() as tx:
                tx.put_setting(key=f"k{number % 50}", value=f"{number:06}" * 3000)

    def log_bytes(self) -> int:
        return Path(f"{self.path}-wal").stat().st_size

    def test_no_commit_folds_it_in(self):
        self.write()
        with self.store.transaction() as tx:
            self.assertEqual(tx._number("PRAGMA wal_autocheckpoint", {}), 0)

    def test_it_stays_bounded_however_much_is_written(self):
        self.write_much(2000)  # 40 MB
        self.assertIsNotNone(self.store._folder)
        self.store._folder.join(30)
        self.assertLess(self.log_bytes(), 2 * module._LONG_LOG_BYTES)
        self.assertGreater(self.path.stat().st_size, 1_000_000)  # the pages are in the file

    def test_a_log_that_was_folded_in_is_begun_anew_and_is_as_long_as_what_is_in_it(self):
        with mock.patch.object(module, "_LOOK_EVERY", 1 << 30):
            self.write_much(300)
        self.assertGreater(self.log_bytes(), module._LOG_BYTES)
        module._fold(self.store._opened)
        self.write_much(1)
        self.assertLess(self.log_bytes(), 100_000)
        self.write_much(2 * module._LOOK_EVERY)
        self.assertIsNone(self.store._folder, "a short log is left alone")

    @contextmanager
    def asked_of_sqlite(self) -> Iterator[list[str]]:
        """The statements on connections that are opened from here on."""
        said: list[str] = []
        connect = sqlite3.connect
        def traced(*args: Any, **keywords: Any) -> sqlite3.Connection:
            conn = connect(*args, **keywords)
            conn.set_trace_callback(said.append)
            return conn
        with mock.patch.object(module.sqlite3, "connect", traced):
            yield said

    def test_somebody_is_waited_for_only_when_a_very_long_log_does_not_end(self):
        self.write()
        with closing(sqlite3.connect(self.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM settings").fetchone()
            with mock.patch.object(module, "_LOOK_EVERY", 1 << 30):
                self.write_much(10)
            for longest, restarts in ((1 << 30, 0), (10_000, 1)):
                with mock.patch.object(module, "_LONG_LOG_BYTES", longest), \
                        self.asked_of_sqlite() as said:
                    began = time.monotonic()
                    module._fold(self.store._opened)
                    self.assertLess(time.monotonic() - began, module.BUSY_TIMEOUT_S)
                self.assertEqual(sum("RESTART" in sql for sql in said), restarts)
            reader.execute("COMMIT")
        with mock.patch.object(module, "_LONG_LOG_BYTES", 10_000), self.asked_of_sqlite() as said:
            module._fold(self.store._opened)
        self.assertFalse([sql for sql in said if "RESTART" in sql], "it was folded in whole")

    def test_a_commit_has_been_made_also_where_no_thread_can_be_started(self):
        with mock.patch.object(module, "_LOG_BYTES", 1), mock.patch.object(
                module.threading.Thread, "start", side_effect=RuntimeError("no more threads")), \
                self.assertLogs("manyhands", "WARNING"):
            self.write(value="kept")
        self.assertEqual(self.read(), "kept")

    def test_closing_waits_for_the_thread(self):
        done = []
        def slow(opened: object) -> None:
            time.sleep(0.2)
            done.append(opened)
        with mock.patch.object(module, "_fold", slow), mock.patch.object(module, "_LOG_BYTES", 1):
            self.write()
            self.write(value="w")
            self.store._fold_log()
            self.store.close()
        self.assertEqual(len(done), 1)

    def test_the_log_that_a_killed_process_left_is_folded_in_by_the_next(self):
        subprocess.run([sys.executable, "-c", f"""
import os, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support import plugin_module
module = plugin_module("store")
store = module.Store(lambda: Path({str(self.path)!r}), clean=str)
for number in range(60):
    with store.transaction() as tx:
        for key in range(10):
            tx.put_setting(key=f"k{{key}}", value=f"{{number:06}}" * 3000)
os._exit(0)"""], check=True)
        self.assertGreater(self.log_bytes(), module._LOG_BYTES)
        size = self.path.stat().st_size
        self.write()
        self.store._folder.join(30)
        self.assertGreater(self.path.stat().st_size, size)

    def test_a_file_that_was_deleted_or_replaced_is_not_made_or_touched(self):
        self.write()
        opened = self.store._opened
        self.path.unlink()
        module._fold(opened)
        self.assertFalse(self.path.exists())
        self.path.write_bytes(b"garbage " * 1000)
        before = self.state()
        module._fold(opened)
        self.assertEqual(self.state(), before)

    def test_one_that_cannot_be_folded_is_a_log_line_and_nothing_else(self):
        self.path.write_bytes(b"garbage " * 1000)
        with self.assertLogs("manyhands", "WARNING"):
            module._fold(module._identity_of(self.path))


class Deferred(FileCase):
    """An owner's row that could not be written is written by the next transaction, once."""

    def defer(self, event: str) -> None:
        self.store.defer(at=NOON, kind="tool", event=event, person_id=ANNA)

    def events(self) -> list[str]:
        with self.store.transaction() as tx:
            return [row["event"] for row in reversed(tx.trail(person_id=ANNA, since=0,
                                                              limit=5000))]

    def test_the_next_transaction_writes_it_in_order_and_only_once(self):
        self.defer("first")
        self.defer("second")
        self.write()
        self.write()
        self.assertEqual(self.events(), ["first", "second"])

    def test_one_that_rolls_back_leaves_it_for_the_one_after(self):
        self.defer("first")
        for _ in range(3):
            with self.assertRaises(ValueError), self.store.transaction():
                raise ValueError
        self.assertEqual(self.events(), ["first"])
        self.assertEqual(self.events(), ["first"])

    def test_one_deferred_inside_a_transaction_is_not_lost(self):
        self.defer("first")
        with self.store.transaction():
            self.defer("second")
        self.assertEqual(self.events(), ["first", "second"])

    def test_one_deferred_while_the_queue_is_full_is_not_lost(self):
        for number in range(1000):
            self.defer(str(number))
        with self.store.transaction():
            self.defer("last")
        self.assertEqual(self.events()[-1], "last")
        self.assertEqual(len(self.events()), 1001)

    def test_it_survives_a_store_that_could_not_be_opened(self):
        good, self.path = self.path, self.folder
        self.defer("first")
        with self.assertRaises(StoreError):
            self.write()
        self.path = good
        self.assertEqual(self.events(), ["first"])


class Trouble(FileCase):
    """A busy, missing, read-only or full place: an error now, and at work again afterwards."""

    @contextmanager
    def held_by_another_process(self) -> Iterator[subprocess.Popen]:
        child = subprocess.Popen([sys.executable, "-c", """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
conn.execute("COMMIT")
conn.close()""", str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        try:
            yield child
        finally:
            child.communicate("\n")

    def test_a_busy_file_is_waited_for(self):
        self.write()
        started, done = threading.Event(), []

        def write() -> None:
            started.set()
            self.write(value="waited")
            done.append(True)

        thread = threading.Thread(target=write)
        with self.held_by_another_process():
            thread.start()
            started.wait()
            self.assertEqual(done, [])
        thread.join()
        self.assertEqual((done, self.read()), ([True], "waited"))

    def test_a_file_that_stays_busy_is_store_busy_and_then_works_again(self):
        with mock.patch.object(module, "BUSY_TIMEOUT_S", 0.05):
            self.write()
            with self.held_by_another_process(), self.assertRaises(module.StoreBusy):
                self.write(value="w")
        self.assertEqual(self.read(), "v")

    def test_another_thread_that_keeps_the_store_is_store_busy(self):
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with self.store.transaction():
                held.set()
                let_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        with mock.patch.object(module, "LOCK_TIMEOUT_S", 0.05), \
                self.assertRaises(module.StoreBusy):
            self.write()
        let_go.set()
        thread.join()
        self.write()
        self.assertEqual(self.read(), "v")

    def test_a_place_that_cannot_be_used_is_a_store_error_and_a_mended_one_works(self):
        good, plain = self.path, self.folder / "plain"
        plain.write_text("x")
        for bad in (self.folder, plain / "manyhands.db", Path("x\0y"), self.folder / ("n" * 300)):
            with self.subTest(path=str(bad)[:40]):
                self.path = bad
                with self.assertRaises(StoreError):
                    self.write()
                self.path = good
                self.write()
                self.assertEqual(self.read(), "v")
                self.store.close()

    def test_a_file_removed_under_a_closed_store_starts_a_new_one(self):
        self.write()
        self.store.close()
        self.path.unlink()
        self.assertIsNone(self.read())

    def test_a_full_disk_is_a_store_error_leaves_nothing_and_passes(self):
        said = in_children(self.path, """
import resource
with store.transaction() as tx:
    tx.put_setting(key="k", value="before")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
try:
    with store.transaction() as tx:
        tx.put_setting(key="k", value="after")
        for number in range(2000):
            tx.put_setting(key=f"k{number}", value="x" * 1000)
    print("it was written")
except module.StoreError:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
with store.transaction() as tx:
    print(tx.setting(key="k"), tx.setting(key="k0"))""", 1)
        self.assertEqual(said, ["before None"])

    def test_a_read_only_file_is_a_store_error_and_works_again_when_writable(self):
        self.write()
        self.store.close()
        readonly = self.folder / "readonly.db"
        readonly.write_bytes(self.path.read_bytes())
        uri = f"file:{readonly}?mode=ro&immutable=1"
        real = sqlite3.connect

        def connect(*args: Any, **keywords: Any) -> sqlite3.Connection:
            return real(uri, **{**keywords, "uri": True})

        store = Store(lambda: readonly, clean=str)
        self.addCleanup(store.close)
        with mock.patch.object(sqlite3, "connect", connect), self.assertRaises(StoreError), \
                store.transaction() as tx:
            tx.put_setting(key="k", value="w")
        with store.transaction() as tx:
            self.assertEqual(tx.setting(key="k"), "v")


class AskCase(FileCase):
    def winners(self, act: Callable[[Any, int], object]) -> int:
        """How many of sixteen succeed at once, each over a connection of its own."""
        stores = [Store(lambda: self.path, clean=str) for _ in range(16)]
        for store in stores:
            self.addCleanup(store.close)

        def work(number: int) -> bool:
            with stores[number].transaction() as tx:
                return bool(act(tx, number))

        return sum(at_once(16, work))

    def park(self, *, uses: int = 0, tool: str = "t", person_id: str = ANNA) -> int:
        with self.store.transaction() as tx:
            ask_id = tx.park(code="ACDE", kind="tool", person_id=person_id, tool=tool,
                             args_json="{}", args_digest="d", binding="arguments", differs=False,
                             via="", chat="", now=NOON, expires_at=NOON + 100)
            if uses:
                tx.close_ask(ask_id=ask_id, outcome="approved", answered_by=BEN, reason="",
                             now=NOON, uses=uses, grant_until=NOON + 100)
        return ask_id

    def notice(self) -> None:
        with self.store.transaction() as tx:
            tx.add_notice(nonce="n", kind="ask", ask_id=None, text="x", person_id=ANNA,
                          platform="telegram", user_id="1", chat_id="1", chat_type="dm",
                          thread_id="", now=NOON)


class Contract20ARaceHasOneWinner(AskCase):
    """Of all that try at once, one wins."""

    def test_one_redeems_an_invite(self):
        with self.store.transaction() as tx:
            invite = tx.add_invite(code_hash="h", role="guest", made_by=ANNA, now=NOON,
                                   expires_at=NOON + 1)
        self.assertEqual(self.winners(lambda tx, number: tx.redeem_invite(
            invite_id=invite, redeemed_by=f"telegram:{number}", now=NOON)), 1)

    def test_one_uses_a_claim(self):
        with self.store.transaction() as tx:
            tx.put_claim(code_hash="h", now=NOON, expires_at=NOON + 1)
        self.assertEqual(self.winners(lambda tx, _: tx.use_claim(code_hash="h", now=NOON)), 1)

    def test_one_answers_an_ask(self):
        ask_id = self.park()
        self.assertEqual(self.winners(lambda tx, number: tx.close_ask(
            ask_id=ask_id, outcome=("approved", "denied", "superseded")[number % 3],
            answered_by=BEN, reason="", now=NOON)), 1)

    def test_one_spends_a_grant_and_three_spend_one_for_three(self):
        for uses in (1, 3):
            with self.subTest(uses=uses):
                self.park(uses=uses, tool=f"t{uses}")
                self.assertEqual(self.winners(lambda tx, _, tool=f"t{uses}": tx.spend_grant(
                    person_id=ANNA, tool=tool, args_digest="d", now=NOON)), uses)

    def test_one_takes_a_notice(self):
        self.notice()
        self.assertEqual(self.winners(lambda tx, _: tx.take_notice(nonce="n", now=NOON)), 1)

    def test_one_shows_a_notice(self):
        self.notice()
        self.assertEqual(self.winners(lambda tx, _: tx.show_notice(
            nonce="n", platform="telegram", user_id="1", now=NOON)), 1)

    def test_one_parks_for_a_person_and_a_tool(self):
        def work(number: int) -> bool:
            try:
                self.park()
            except StoreError:
                return False
            return True
        self.assertEqual(sum(at_once(16, work)), 1)

    def test_one_of_several_processes_spends_a_grant(self):
        self.park(uses=1)
        said = in_children(self.path, """
with store.durable_transaction() as tx:
    spent = tx.spend_grant(person_id="telegram:1", tool="t", args_digest="d", now=NOON)
print("spent" if spent else "none")""", 4)
        self.assertEqual(sorted(said), ["none"] * 3 + ["spent"])


class Expiry(AskCase):
    """What has expired never wins, also at the very instant."""

    def test_an_invite_and_a_claim_end_at_the_instant(self):
        with self.store.transaction() as tx:
            invite = tx.add_invite(code_hash="h", role="guest", made_by=ANNA, now=NOON,
                                   expires_at=NOON + 10)
            tx.put_claim(code_hash="c", now=NOON, expires_at=NOON + 10)
            for at in (NOON + 10, NOON + 11):
                with self.subTest(at=at - NOON):
                    self.assertEqual(tx.live_invites(now=at), [])
                    self.assertFalse(tx.redeem_invite(invite_id=invite, redeemed_by=BEN, now=at))
                    self.assertEqual(tx.live_claims(now=at), [])
                    self.assertFalse(tx.use_claim(code_hash="c", now=at))
            self.assertTrue(tx.redeem_invite(invite_id=invite, redeemed_by=BEN, now=NOON + 9.99))
            self.assertTrue(tx.use_claim(code_hash="c", now=NOON + 9.99))

    def test_an_ask_cannot_be_answered_or_shown_at_the_instant(self):
        ask_id = self.park()
        with self.store.transaction() as tx:
            self.assertFalse(tx.show_ask(ask_id=ask_id, now=NOON + 100, expires_at=NOON + 900))
            self.assertFalse(tx.close_ask(ask_id=ask_id, outcome="approved", answered_by=BEN,
                                          reason="", now=NOON + 100, uses=1,
                                          grant_until=NOON + 900))
            self.assertTrue(tx.show_ask(ask_id=ask_id, now=NOON + 99.9, expires_at=NOON + 900))
            self.assertEqual(tx.ask(ask_id=ask_id)["expires_at"], NOON + 100)

    def test_a_grant_is_gone_at_the_instant(self):
        self.park(uses=5)
        who = {"person_id": ANNA, "tool": "t"}
        with self.store.transaction() as tx:
            self.assertIsNone(tx.spend_grant(**who, args_digest="d", now=NOON + 100))
            self.assertIsNone(tx.live_grant(**who, now=NOON + 100))
            self.assertIsNotNone(tx.spend_grant(**who, args_digest="d", now=NOON + 99.9))

    def test_a_clock_that_jumps_back_revives_nothing_that_was_swept(self):
        ask_id = self.park()
        self.park(uses=1, tool="u")
        with self.store.transaction() as tx:
            self.assertEqual([row["ask_id"] for row in tx.expire_asks(now=NOON + 100)], [ask_id])
            self.assertEqual(tx.expire_asks(now=NOON + 100), [])
            self.assertFalse(tx.close_ask(ask_id=ask_id, outcome="approved", answered_by=BEN,
                                          reason="", now=NOON))
            self.assertIsNone(tx.spend_grant(person_id=ANNA, tool="u", args_digest="d", now=NOON))


class Asks(AskCase):
    def test_one_open_ask_for_a_person_and_tool_is_held_by_the_file(self):
        self.park()
        with self.assertRaises(StoreError):
            self.park()
        self.park(tool="other")
        self.park(person_id=BEN)

    def test_a_closed_ask_makes_room(self):
        ask_id = self.park()
        with self.store.transaction() as tx:
            tx.close_ask(ask_id=ask_id, outcome="denied", answered_by=BEN, reason="", now=NOON)
        self.park()

    def test_a_grant_is_for_its_person_its_tool_and_its_arguments(self):
        self.park(uses=9)
        with self.store.transaction() as tx:
            for person_id, tool, args in ((BEN, "t", "d"), (ANNA, "u", "d"), (ANNA, "t", "e"),
                                          (ANNA, "T", "d"), (ANNA, "t ", "d"), ("", "t", "d")):
                with self.subTest(person_id=person_id, tool=tool, args=args):
                    self.assertIsNone(tx.spend_grant(person_id=person_id, tool=tool,
                                                     args_digest=args, now=NOON))
            self.assertEqual(tx.spend_grant(person_id=ANNA, tool="t", args_digest="d",
                                            now=NOON)["uses_left"], 8)

    def test_ending_a_persons_asks_ends_their_grants_and_nobody_elses(self):
        self.park()
        self.park(uses=1, tool="u")
        self.park(uses=1, tool="u", person_id=BEN)
        with self.store.transaction() as tx:
            tx.end_asks(person_id=ANNA, now=NOON)
            self.assertEqual(tx.open_asks(person_id=ANNA), [])
            self.assertIsNone(tx.live_grant(person_id=ANNA, tool="u", now=NOON))
            self.assertIsNotNone(tx.live_grant(person_id=BEN, tool="u", now=NOON))
            tx.end_asks(person_id=None, now=NOON)
            self.assertIsNone(tx.live_grant(person_id=BEN, tool="u", now=NOON))

    def test_a_code_is_remembered_for_thirty_days(self):
        self.park()
        with self.store.transaction() as tx:
            self.assertTrue(tx.code_in_use(code="ACDE", now=NOON + 30 * 86400 - 1))
            self.assertFalse(tx.code_in_use(code="ACDE", now=NOON + 30 * 86400))

    def test_a_notice_is_shown_to_the_account_it_was_sent_to_only(self):
        self.notice()
        with self.store.transaction() as tx:
            for platform, user_id in (("telegram", "2"), ("discord", "1"), ("", ""),
                                      ("telegram", "1 ")):
                with self.subTest(platform=platform, user_id=user_id):
                    self.assertFalse(tx.show_notice(nonce="n", platform=platform,
                                                    user_id=user_id, now=NOON))
            self.assertEqual(set(tx.known_nonces(["n", "m", "'"])), {"n"})
            self.assertTrue(tx.show_notice(nonce="n", platform="telegram", user_id="1", now=NOON))


class FactCase(FileCase):
    def fact(self, text: str, *, person_id: str = ANNA, topic: str = "") -> int | None:
        with self.store.transaction() as tx:
            return tx.add_fact(person_id=person_id, text=text, topic=topic, now=NOON)

    def recall(self, query: str, *, person_id: str = ANNA, limit: int = 10) -> list[str]:
        with self.store.transaction() as tx:
            return [row["text"] for row in tx.recall(person_id=person_id, query=query,
                                                     limit=limit)]


class Facts(FactCase):
    def test_a_number_is_never_used_again(self):
        self.assertEqual([self.fact("a"), self.fact("b")], [1, 2])
        with self.store.transaction() as tx:
            self.assertTrue(tx.forget(person_id=ANNA, n=2))
            self.assertFalse(tx.forget(person_id=ANNA, n=2))
        self.assertEqual(self.fact("b"), 3)
        with self.store.transaction() as tx:
            self.assertEqual(tx.forget_all(person_id=ANNA), 2)
        self.assertEqual(self.fact("a"), 4)

    def test_numbers_are_each_persons_own(self):
        self.fact("a")
        self.assertEqual(self.fact("a", person_id=BEN), 1)

    def test_an_exact_repeat_is_kept_once(self):
        self.fact("likes tea")
        self.assertIsNone(self.fact("likes tea"))
        self.assertIsNone(self.fact("likes tea", topic="drinks"))
        self.assertEqual(self.fact("likes tea "), 2)
        with self.store.transaction() as tx:
            self.assertEqual(tx.fact_count(person_id=ANNA), 2)

    def test_what_is_forgotten_is_found_by_nothing_and_leaves_no_terms(self):
        self.fact("likes jasmine tea", topic="drinks")
        with self.store.transaction() as tx:
            tx.forget(person_id=ANNA, n=1)
        self.assertEqual(self.recall("jasmine tea drinks"), [])
        self.assertEqual(self.raw("SELECT * FROM terms"), [])

    def test_nobody_forgets_somebody_elses_fact(self):
        self.fact("a")
        with self.store.transaction() as tx:
            self.assertFalse(tx.forget(person_id=BEN, n=1))
            self.assertEqual(tx.forget_all(person_id=BEN), 0)
        self.assertEqual(self.recall("a"), ["a"])

    def test_recall_finds_a_fact_in_any_language(self):
        noise = ("Something else entirely about bicycles", "три книги", "เพลงใหม่", "새 자전거")
        table = {
            "English": ("My allergy: peanuts and shellfish", "allergies?"),
            "English, another ending": ("The appointments are on Monday", "next appointment"),
            "German": ("Die Straße zum Kindergarten ist gesperrt", "STRASSE"),
            "German compound": ("Die Kaffeemaschine ist kaputt", "Kaffee"),
            "Vietnamese": ("Con gái tôi dị ứng với đậu phộng", "dị ứng gì?"),
            "Vietnamese, decomposed": ("Cà phê sữa đá", "ca\u0300 phe\u0302"),
            "Chinese": ("我女儿对花生过敏", "过敏"),
            "Chinese, one character": ("我家有一只猫", "猫"),
            "Chinese, inside a question": ("我家有一只猫叫咪咪", "你知道我的猫吗"),
            "Japanese": ("娘はピーナッツアレルギーです", "アレルギー"),
            "Japanese, one character": ("私の車は赤い", "車"),
            "Thai": ("ลูกสาวแพ้ถั่วลิสง", "แพ้ถั่ว"),
            "Korean": ("딸은 땅콩 알레르기가 있어요", "알레르기"),
            "Korean, one syllable with a particle": ("우리는 개를 키워요", "개"),
            "Arabic": ("ابنتي لديها حساسية من الفول السوداني", "حساسية"),
            "Russian": ("У дочери аллергия на арахис", "АЛЛЕРГИИ"),
            "full-width": ("Wi-Fi password is on the fridge", "ｐａｓｓｗｏｒｄ"),
            "a number": ("Flat 4711, third floor", "4711"),
            "mixed scripts": ("我的iPhone壳是红色", "iphone"),
        }
        for text in noise:
            self.fact(text)
        for text, _ in table.values():
            self.fact(text)
        for language, (text, query) in table.items():
            with self.subTest(language):
                self.assertIn(text, self.recall(query, limit=3))

    def test_the_more_relevant_fact_comes_first_then_the_newer(self):
        for text in ("tea and milk", "tea and sugar", "tea and jasmine petals"):
            self.fact(text)
        self.assertEqual(self.recall("jasmine tea")[0], "tea and jasmine petals")
        self.assertEqual(self.recall("tea", limit=2),
                         ["tea and jasmine petals", "tea and sugar"])

    def test_a_facts_topic_finds_it_too(self):
        self.fact("penicillin", topic="allergies")
        self.assertEqual(self.recall("allergies"), ["penicillin"])

    def test_the_end_of_the_longest_fact_is_found(self):
        for filler in ("word{} ", "{:c}"):
            text = "".join(filler.format(0x4E00 + n) for n in range(2000))[:1980] + " zebra 斑马"
            self.fact(text)
            with self.subTest(filler=filler):
                self.assertIn(text, self.recall("zebra"))
                self.assertIn(text, self.recall("斑马"))

    def test_a_query_that_is_no_words_finds_nothing_and_breaks_nothing(self):
        self.fact("tea")
        for query in ("", "   ", "\0", "'; DROP TABLE facts; --", "%", "_", "*", '"', "NEAR(", "🙂",
                      "\ud800", "((" * 500, "\u200b" * 1000, "x" * 100_000):
            with self.subTest(query=query[:20]):
                self.assertEqual(self.recall(query), [])
        self.assertEqual(self.recall("tea"), ["tea"])

    def test_terms_are_given_once_each_and_hold_no_blanks(self):
        for text in ("Tea tea TEA", "a-b_c d", "日本語 日本語", "e\u0301 \u00e9"):
            found = module.terms(text)
            with self.subTest(text=text):
                self.assertEqual(len(found), len(set(found)))
                self.assertFalse(any(c.isspace() for term in found for c in term))


class Contract10NoQueryReadsAnotherPersonsFacts(FactCase):
    """No query can read another person's facts."""

    words = ("tea", "milk", "allergy", "allergies", "secret", "猫", "花生过敏", "dị", "ứng", "개를")

    def test_recall_never_returns_what_is_not_that_persons(self):
        draw = random.Random(10)
        kept: dict[str, set[str]] = {}
        people = ["p:1", "p:11", "p:1 ", "p:%", "p:_", "P:1", "p:1'--", "@shared:", "q:1"]
        with self.store.transaction() as tx:
            for number in range(300):
                person_id = draw.choice(people)
                text = f"{' '.join(draw.choices(self.words, k=4))} {number}"
                kept.setdefault(person_id, set()).add(text)
                tx.add_fact(person_id=person_id, text=text, topic=draw.choice(self.words),
                            now=NOON)
            for person_id, query in itertools.product([*people, "", "%", "p:"], self.words):
                rows = tx.recall(person_id=person_id, query=query, limit=1000)
                self.assertLessEqual({row["text"] for row in rows}, kept.get(person_id, set()))
            for person_id in people:
                self.assertEqual({row["text"] for row in tx.facts(person_id=person_id)},
                                 kept.get(person_id, set()))
                self.assertEqual(tx.fact_count(person_id=person_id),
                                 len(kept.get(person_id, set())))

    def calls(self, tx: Any) -> None:
        """Every query over one person's facts, and those of the trail."""
        tx.facts_at(person_id=BEN, numbers=[1, 2, 3])
        tx.facts(person_id=BEN)
        tx.fact_count(person_id=BEN)
        tx.add_fact(person_id=BEN, text="new", topic="", now=NOON)
        tx.forget(person_id=BEN, n=1)
        tx.trail(person_id=BEN, since=0, limit=100)
        tx.trail_count(person_id=BEN)
        tx.forget_all(person_id=BEN)

    @contextmanager
    def watched(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as conn:
            conn.row_factory = sqlite3.Row
            yield conn

    def test_every_such_query_has_the_person_as_an_indexed_term(self):
        self.fact("tea", person_id=ANNA)
        self.fact("tea", person_id=BEN)
        statements: list[str] = []
        with self.watched() as conn:
            conn.set_trace_callback(statements.append)
            self.calls(module.Tx(conn, str))
            conn.set_trace_callback(None)
            plans = {sql: [row["detail"] for row in conn.execute(f"EXPLAIN QUERY PLAN {sql}")]
                     for sql in statements if not sql.startswith("--")}
        looked_at = [(sql, line) for sql, lines in plans.items() for line in lines
                     if any(f" {table} " in f"{line} " for table in ("facts", "terms", "audit"))]
        self.assertGreater(len(looked_at), 7)
        for sql, line in looked_at:
            with self.subTest(sql=sql, plan=line):
                self.assertRegex(line, r"^SEARCH .*\((person_id|space)=\?")

    def test_no_such_query_takes_longer_for_what_others_keep(self):
        """Counted in steps of SQLite's machine: not one more row is visited."""
        def steps() -> int:
            counted = [0]

            def count() -> int:
                counted[0] += 1
                return 0

            with self.watched() as conn:
                conn.execute("BEGIN")
                conn.set_progress_handler(count, 1)
                self.calls(module.Tx(conn, str))
                conn.set_progress_handler(None, 0)
                conn.execute("ROLLBACK")
            return counted[0]

        def others(numbers: range) -> None:
            with self.store.transaction() as tx:
                for number in numbers:
                    person = f"telegram:{number}"
                    tx.add_fact(person_id=person, text=f"tea allergy {number}", topic="花生过敏",
                                now=NOON)
                    tx.record(now=NOON, kind="turn", event="t", person_id=person)
                    tx.share(author_id=person, text=f"tea allergy {number}", now=NOON)

        for number in range(3):
            self.fact(f"tea {number}", person_id=BEN)
        others(range(10, 30))  # neighbours on both sides, so that no scan ends at the table's end
        with_twenty = steps()
        others(range(30, 400))
        self.assertEqual(steps(), with_twenty)

    def test_the_person_is_a_mandatory_argument(self):
        with self.store.transaction() as tx:
            for call in (lambda: tx.facts(), lambda: tx.recall(query="x", limit=1),
                         lambda: tx.fact_count(), lambda: tx.forget(n=1),
                         lambda: tx.forget_all(), lambda: tx.facts(ANNA)):
                with self.assertRaises(TypeError):
                    call()


class Shared(FactCase):
    def test_shared_facts_are_apart_from_everybodys_own(self):
        self.fact("private tea")
        with self.store.transaction() as tx:
            n = tx.share(author_id=ANNA, text="shared tea", now=NOON)
            self.assertEqual([r["text"] for r in tx.shared_facts_at(numbers=[n])],
                             ["shared tea"])
            self.assertEqual([r["text"] for r in tx.shared_facts()], ["shared tea"])
            self.assertEqual(tx.ranked(person_id=ANNA, query="tea"),
                             [(ANNA, 1), (module.SHARED_SPACE, n)])
            self.assertEqual([r["text"] for r in tx.facts_at(person_id=ANNA, numbers=[1])],
                             ["private tea"])
            self.assertEqual([(r["shared"], r["text"]) for r in tx.recall(
                person_id=BEN, query="tea", limit=9)], [(1, "shared tea")])
            self.assertEqual(tx.facts_at(person_id=module.SHARED_SPACE, numbers=[n]), [])
            self.assertTrue(tx.unshare(n=n))
            self.assertFalse(tx.unshare(n=n))
            self.assertEqual(tx.ranked(person_id=BEN, query="tea"), [])

    def test_a_shared_number_is_never_used_again_and_a_repeat_is_kept_once(self):
        with self.store.transaction() as tx:
            first = tx.share(author_id=ANNA, text="a", now=NOON)
            self.assertIsNone(tx.share(author_id=BEN, text="a", now=NOON))
            tx.unshare(n=first)
            self.assertGreater(tx.share(author_id=ANNA, text="a", now=NOON), first)


class Removal(FileCase):
    def fill(self, person: str) -> None:
        """One of everything that can be a person's."""
        platform, _, sender_id = person.partition(":")
        self.add(person, "member")
        with self.store.transaction() as tx:
            tx.add_fact(person_id=person, text=f"of {sender_id}", topic="", now=NOON)
            tx.share(author_id=person, text=f"shared by n{sender_id}", now=NOON)
            tx.put_rule(subject=person, tool="t", effect="allow")
            tx.add_tokens(person_id=person, day=1, tokens=5)
            tx.learn_address(platform=platform, user_id=sender_id, chat_id="c", chat_type="dm",
                             thread_id="", now=NOON)
            tx.add_invite(code_hash=f"h{person}", role="guest", made_by=person, now=NOON,
                          expires_at=NOON + 9)
            tx.add_attempt(account=person, now=NOON, keep_s=60)
            for tool, uses in (("asked", 0), ("granted", 1)):
                ask_id = tx.park(code=f"{tool}{sender_id}", kind="tool", person_id=person,
                                 tool=tool, args_json="{}", args_digest="d", binding="arguments",
                                 differs=False, via="", chat="", now=NOON, expires_at=NOON + 9)
                if uses:
                    tx.close_ask(ask_id=ask_id, outcome="approved", answered_by="cli:uid:0",
                                 reason="", now=NOON, uses=uses, grant_until=NOON + 9)
                for nonce, to in ((f"{tool}{person}", person), (f"o{tool}{person}", "cli:uid:0")):
                    tx.add_notice(nonce=nonce, kind="ask", ask_id=ask_id, text="", person_id=to,
                                  platform="p", user_id="u", chat_id="", chat_type="dm",
                                  thread_id="", now=NOON)
            tx.record(now=NOON, kind="turn", event="t", person_id=person)

    def mentions(self, person: str) -> set[str]:
        """The tables in which any column holds this person's id or sender id."""
        sender_id = person.partition(":")[2]
        found = set()
        for (table,) in self.raw("SELECT name FROM sqlite_master WHERE type = 'table'"):
            for row in self.raw(f"SELECT * FROM {table}"):
                if any(isinstance(cell, str) and (person in cell or cell == sender_id)
                       for cell in row):
                    found.add(table)
        return found

    def test_the_person_and_all_that_is_theirs_go_and_the_audit_stays(self):
        one, other = "telegram:7001", "telegram:7002"
        self.fill(one)
        self.fill(other)
        before = self.mentions(other)
        with self.store.transaction() as tx:
            tx.remove_person(person_id=one)
        # `counters` keeps the last number given, so that none is ever given again, and a notice's
        # nonce still tells what a later request of that chat must not show.
        self.assertEqual(self.mentions(one), {"audit", "counters", "notices"})
        self.assertEqual(self.raw("SELECT DISTINCT text, ask_id FROM notices WHERE person_id = ?",
                                  one), [("", None)])
        self.assertEqual(self.mentions(other), before)
        self.assertLessEqual({"people", "accounts", "facts", "terms", "tool_rules", "usage",
                              "addresses", "invites", "attempts", "approvals", "notices"}, before)

    def test_their_shared_facts_stay_unsigned(self):
        self.fill("telegram:7001")
        with self.store.transaction() as tx:
            tx.remove_person(person_id="telegram:7001")
            rows = tx.shared_facts()
            self.assertEqual([(r["text"], r["author_id"], r["author"]) for r in rows],
                             [("shared by n7001", None, None)])
            self.assertEqual(len(tx.ranked(person_id="", query="shared")), 1)

    def test_whoever_comes_back_finds_nothing_of_theirs(self):
        self.fill("telegram:7001")
        with self.store.transaction() as tx:
            tx.remove_person(person_id="telegram:7001")
        self.add("telegram:7001", "guest")
        with self.store.transaction() as tx:
            self.assertEqual(tx.facts(person_id="telegram:7001"), [])
            self.assertFalse(tx.rules(subject="telegram:7001", role_subject="@guest"))
            self.assertEqual(tx.tokens_on(person_id="telegram:7001", day=1), 0)
            self.assertEqual(tx.open_asks(person_id="telegram:7001"), [])
            self.assertIsNone(tx.live_grant(person_id="telegram:7001", tool="granted", now=NOON))
            self.assertEqual(tx.add_fact(person_id="telegram:7001", text="x", topic="", now=NOON),
                             2)


HOSTILE_IDS = (
    "a:b", "a", "b", "a:", ":a", "'", "''", '"', "a'--", "%", "_", "a%", "a_", "aa", "ab", "A",
    "\U0001f600", "\U0001f601", "a\nb", "a\n", "a\r\n", "a\x00b", "a\x00", "a ", " a", "\u00e9",
    "e\u0301", "\u0430", "01", "1", "1.0", "-1", "1e3", "NULL", "@shared", "@member", "..", "../a",
    "\u202ea", "\u200ba", "x" * 5000, "x" * 4999 + "y", "x" * 4998 + "yx", "x" * 5001,
    "x" * 120, "x" * 121, "\n" * 2500, "\n" * 2499 + "\r", "a\\u{a}b", "a\\nb")


class HostileIds(FolderCase):
    """Ids are text: whatever they hold, two of them are two people everywhere."""

    def setUp(self) -> None:
        super().setUp()
        self.store = Store(lambda: self.folder / "m.db", clean=production_clean)
        self.addCleanup(self.store.close)
        with self.store.transaction() as tx:
            for number, sender_id in enumerate(HOSTILE_IDS):
                person = f"p:{sender_id}"
                tx.add_person(person_id=person, platform="p", sender_id=sender_id,
                              name=f"n{number}", name_key=f"n{number}", role="member",
                              joined_by="t", now=NOON)
                tx.add_fact(person_id=person, text=f"fact {number}", topic="", now=NOON)
                tx.put_rule(subject=person, tool=f"t{number}", effect="allow")
                tx.add_tokens(person_id=person, day=1, tokens=number + 1)
                tx.add_attempt(account=person, now=NOON + number / 1000, keep_s=60)
                tx.record_speaker(session_id=person, speaker=person, now=NOON)
                tx.learn_address(platform="p", user_id=sender_id, chat_id=f"c{number}",
                                 chat_type="dm", thread_id="", now=NOON)
                tx.record(now=NOON, kind="turn", event=f"e{number}", person_id=person)

    def test_each_has_exactly_what_is_its_own(self):
        with self.store.transaction() as tx:
            for number, sender_id in enumerate(HOSTILE_IDS):
                person = f"p:{sender_id}"
                with self.subTest(id=sender_id[:12], length=len(sender_id)):
                    self.assertEqual(tx.person_by_account(
                        platform="p", sender_id=sender_id)["person_id"], person)
                    self.assertEqual([r["text"] for r in tx.recall(
                        person_id=person, query="fact", limit=99)], [f"fact {number}"])
                    self.assertEqual([r["tool"] for r in tx.rules(
                        subject=person, role_subject="@member")], [f"t{number}"])
                    self.assertEqual(tx.tokens_on(person_id=person, day=1), number + 1)
                    self.assertEqual(tx.attempts_since(account=person, since=0),
                                     [NOON + number / 1000])
                    self.assertEqual(tx.speakers(session_id=person), [person])
                    self.assertEqual(tx.address(platform="p", user_id=sender_id)["chat_id"],
                                     f"c{number}")
                    self.assertEqual([r["event"] for r in tx.trail(
                        person_id=person, since=0, limit=99)], [f"e{number}"])
                    self.assertEqual(tx.trail_count(person_id=person), 1)

    def test_removing_one_removes_nobody_else(self):
        with self.store.transaction() as tx:
            tx.remove_person(person_id="p:" + "x" * 5000)
            tx.remove_person(person_id="p:%")
            tx.remove_person(person_id="p:_")
            self.assertEqual(len(tx.people()), len(HOSTILE_IDS) - 3)


class Audit(FileCase):
    nasty = "a\nb\r\x00\x1b[31m\u202e\u200b\u2028\x85\ud800\U000e0041c"

    def test_no_row_holds_a_raw_control_character(self):
        with self.store.transaction() as tx:
            tx.record(now=NOON, kind="tool", event=self.nasty, person_id=self.nasty * 100,
                      tool=self.nasty, code=self.nasty, detail=self.nasty)
            tx.record(now=NOON, kind="tool", event="e", person_id=self.nasty)
            rows = tx.trail(person_id=None, since=0, limit=9)
        self.store.defer(at=NOON, kind="tool", event=self.nasty, person_id=self.nasty)
        with self.store.transaction() as tx:
            rows += tx.trail(person_id=None, since=0, limit=1)
        for row in rows:
            for key in ("event", "person_id", "tool", "code", "detail"):
                with self.subTest(column=key):
                    self.assertFalse(identity.has_hidden(row[key]))

    def test_a_trail_is_one_persons_or_the_houses_newest_first(self):
        with self.store.transaction() as tx:
            for number, person in enumerate((ANNA, BEN, ANNA, "")):
                tx.record(now=NOON + number, kind="turn", event=str(number), person_id=person)
            def events(**where: Any) -> list[str]:
                return [row["event"] for row in tx.trail(**{"since": 0, "limit": 99, **where})]
            self.assertEqual(events(person_id=ANNA), ["2", "0"])
            self.assertEqual(events(person_id=None), ["3", "2", "1", "0"])
            self.assertEqual(events(person_id=None, since=NOON + 1), ["3", "2"])
            self.assertEqual(events(person_id=ANNA, limit=1), ["2"])
            self.assertEqual(events(person_id="telegram:_"), [])
            self.assertEqual(tx.unidentified_since(since=0), 1)
            for kind, tool in (("tool", "terminal"), ("refusal", "terminal"), ("refusal", "")):
                tx.record(now=NOON + 9, kind=kind, event="x", tool=tool)
            self.assertEqual(tx.unidentified_since(since=0), 3)

    def test_a_clock_that_was_wrong_for_a_while_hides_no_row_of_the_time_before(self):
        with self.store.transaction() as tx:
            for at, event in ((NOON - 7200, "a"), (NOON - 3600, "b"), (12.0, "no clock yet"),
                              (NOON + 1e9, "far ahead"), (13.0, "no clock"), (NOON, "c")):
                tx.record(now=at, kind="turn", event=event)
            events = [row["event"] for row in tx.trail(person_id=None, since=NOON - 86400,
                                                       limit=9)]
            self.assertEqual(events, ["c", "far ahead", "b", "a"])
            self.assertEqual(tx.unidentified_since(since=NOON - 86400), 4)

    def test_a_trail_does_not_read_on_through_all_that_is_older(self):
        with self.store.transaction() as tx:
            for number in range(3 * module._OLDER_ROWS):
                tx.record(now=NOON + number, kind="turn", event="t", person_id=ANNA)
            read = []
            tx._conn.set_progress_handler(lambda: read.append(1), 1)
            for person in (None, ANNA):
                read.clear()
                self.assertEqual(tx.trail(person_id=person, since=NOON + 1e6, limit=9), [])
                few = len(read)
                read.clear()
                tx.trail(person_id=person, since=0, limit=10**9)
                self.assertLess(2 * few, len(read))
            tx._conn.set_progress_handler(None, 0)

    def test_an_unknown_kind_is_refused(self):
        with self.assertRaises(StoreError), self.store.transaction() as tx:
            tx.record(now=NOON, kind="other", event="e")

    def test_the_story_of_a_code_is_told_in_order(self):
        with self.store.transaction() as tx:
            for event, code in (("asked", "ACDE"), ("asked", "ZZZZ"), ("approved", "ACDE")):
                tx.record(now=NOON, kind="approval", event=event, code=code)
            self.assertEqual([r["event"] for r in tx.story(code="ACDE", since=0)],
                             ["asked", "approved"])
            self.assertEqual(tx.story(code="ACDE", since=NOON + 1), [])


class Small(FileCase):
    def test_a_day_is_the_utc_day(self):
        midnight = NOON - 43200
        self.assertEqual(module.day_of(midnight), module.day_of(midnight + 86399.9))
        self.assertEqual(module.day_of(midnight), module.day_of(midnight - 0.1) + 1)

    def test_a_claim_that_is_put_ends_the_earlier_one(self):
        with self.store.transaction() as tx:
            tx.put_claim(code_hash="one", now=NOON, expires_at=NOON + 9)
            tx.put_claim(code_hash="two", now=NOON, expires_at=NOON + 9)
            self.assertEqual([r["code_hash"] for r in tx.live_claims(now=NOON)], ["two"])
            self.assertFalse(tx.use_claim(code_hash="one", now=NOON))

    def test_names_are_unique_by_their_key_in_the_file_itself(self):
        self.add(ANNA, "member", "Minh")
        with self.assertRaises(StoreError):
            self.add(BEN, "member", "MINH")

    def test_people_are_listed_owners_first(self):
        for person, role in (("p:1", "blocked"), ("p:2", "guest"), ("p:3", "owner"),
                             ("p:4", "member")):
            self.add(person, role)
        with self.store.transaction() as tx:
            self.assertEqual([r["role"] for r in tx.people()],
                             ["owner", "member", "guest", "blocked"])
            self.assertEqual((tx.has_owner(), tx.owner_count(), len(tx.owners())), (True, 1, 1))


class TheChain(StoreCase):
    """Each row carries the hash of the one before it."""

    def fill(self, rows: int = 12) -> None:
        for n in range(rows):
            with self.store.transaction() as tx:
                tx.record(now=NOON + n, kind="turn", event=f"e{n}", person_id=ANNA)
                tx.record(now=NOON + n, kind="tool", event="allow", tool="t\u202e", detail="d")

    def change(self, sql: str) -> None:
        conn = sqlite3.connect(self.path)
        conn.execute(sql)
        conn.commit()
        conn.close()

    def test_a_whole_trail_is_whole_and_says_its_head(self):
        self.fill()
        found = self.store.verify_audit()
        self.assertEqual((found.rows, found.first, found.head, found.broken), (24, 1, 24, None))
        self.assertEqual(len(found.head_chain), 64)

    def test_the_first_row_that_was_changed_taken_out_or_put_in_is_named(self):
        for sql in ("UPDATE audit SET detail = 'x' WHERE audit_id = 7",
                    "UPDATE audit SET at = at + 1 WHERE audit_id = 7",
                    "UPDATE audit SET person_id = 'x' WHERE audit_id = 7",
                    "DELETE FROM audit WHERE audit_id = 7",
                    "UPDATE audit SET detail = x'ff00' WHERE audit_id = 7",
                    "UPDATE audit SET chain = 'x' WHERE audit_id = 7"):
            with self.subTest(sql=sql):
                self.setUp()
                self.fill()
                self.change(sql)
                self.assertEqual(self.store.verify_audit().broken, 7)

    def test_a_row_of_the_future_does_not_keep_what_is_old(self):
        with self.store.transaction() as tx:
            for at in (NOON, NOON + 1e9, NOON + 1, NOON + 50, NOON + 1e9):
                tx.record(now=at, kind="turn", event="t")
            self.assertEqual(tx.drop_audit(before=-1e6, now=12.0, limit=100), 0,
                             "a board that has just started without a clock")
            self.assertEqual(tx.drop_audit(before=NOON + 9, now=NOON + 60, limit=100), 3)
            self.assertEqual(tx.drop_audit(before=NOON + 9, now=NOON + 60, limit=100), 0)
        self.assertIsNone(self.store.verify_audit().broken)

    def test_after_retention_it_starts_at_the_checkpoint(self):
        self.fill()
        with self.store.transaction() as tx:
            self.assertEqual(tx.drop_audit(before=NOON + 3, now=NOON + 99, limit=4), 4)
            self.assertEqual(tx.drop_audit(before=NOON + 3, now=NOON + 99, limit=100), 2)
            self.assertEqual(tx.drop_audit(before=NOON + 3, now=NOON + 99, limit=100), 0)
        found = self.store.verify_audit()
        self.assertEqual((found.rows, found.first, found.broken), (18, 7, None))

    def test_it_goes_on_where_retention_left_no_row(self):
        self.fill()
        with self.store.transaction() as tx:
            tx.drop_audit(before=NOON + 10**6, now=NOON + 10**6, limit=1000)
        self.fill(1)
        found = self.store.verify_audit()
        self.assertEqual((found.rows, found.first, found.head, found.broken), (2, 25, 26, None))

    def test_two_processes_writing_at_once_make_one_chain(self):
        child = CHILD + """
for n in range(100):
    with store.transaction() as tx:
        tx.record(now=NOON, kind="turn", event=str(n))
"""
        self.fill(1)
        args = [sys.executable, "-c", child, str(TESTS), str(self.path)]
        racers = [subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True) for _ in range(2)]
        for racer in racers:
            racer.communicate("go\n", timeout=60)
        found = self.store.verify_audit()
        self.assertEqual((found.rows, found.broken), (202, None))


class ARollbackThatFails(StoreCase):
    class Stubborn:
        """A connection whose ROLLBACK fails; everything else is the real one's."""

        def __init__(self, conn):
            self.conn = conn

        def __getattr__(self, name):
            return getattr(self.conn, name)

        def execute(self, sql, *params):
            if sql == "ROLLBACK":
                raise sqlite3.OperationalError("database is locked")
            return self.conn.execute(sql, *params)

    def test_leaves_no_transaction_open_for_the_next_one(self):
        with self.store.transaction() as tx:
            tx.record(now=NOON, kind="turn", event="before")
        self.store._conn = self.Stubborn(self.store._conn)
        with self.assertRaises(RuntimeError), self.store.transaction() as tx:
            tx.record(now=NOON, kind="turn", event="undone")
            raise RuntimeError
        with self.store.transaction() as tx:
            rows = tx.trail(person_id=None, since=0.0, limit=10)
        self.assertEqual([row["event"] for row in rows], ["before"])


class TheFileUnderARunningBot(StoreCase):
    def insert(self) -> None:
        with self.store.transaction() as tx:
            tx.record(now=NOON, kind="turn", event="x")

    def test_a_deleted_or_replaced_file_is_noticed_and_not_written_into_the_void(self):
        for change in (Path.unlink, lambda path: path.rename(f"{path}.old")):
            self.insert()
            change(self.path)
            with self.assertRaises(StoreError):
                self.insert()
            self.insert()
            with self.store.transaction() as tx:
                self.assertEqual(len(tx.trail(person_id=None, since=0.0, limit=10)), 1)

    def test_what_is_to_be_known_only_after_the_commit_is(self):
        known: list[str] = []
        with self.assertRaises(RuntimeError), self.store.transaction() as tx:
            tx.after_commit.append(lambda: known.append("rolled back"))
            raise RuntimeError
        with self.store.transaction() as tx:
            tx.after_commit.append(lambda: known.append("committed"))
            self.assertEqual(known, [])
        self.assertEqual(known, ["committed"])


if __name__ == "__main__":
    unittest.main()
