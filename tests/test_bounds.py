"""Floods: how much one person can make the file and the process grow, and that it then stops.

The self-test plays a small part of each. ``python3 tests/test_bounds.py --full`` plays 100,000
messages of one stranger at each door, 100,000 wrong codes and 10,000 asks of 100 KB, holds them to
the stated sizes and prints what it found.
"""

from __future__ import annotations

import contextvars
import re
import sqlite3
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from support import FakeClock, FolderCase, StandInHost, plugin_module

identity = plugin_module("identity")
transport = plugin_module("transport")

LONG = "x" * 100_000
MIB = 1 << 20
# After all four floods of the full size together.
MOST_FILE = 100 * MIB
MOST_MEMORY = 20 * MIB


class Flooded(StandInHost):
    """A household whose clock is moved by hand, its hooks called on the thread at hand."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, FakeClock()
        with mock.patch("time.time", self.clock):  # `register` takes the clock with it
            super().__init__({"db_path": str(path)})
        code = re.search(r"claim (\S+)", self.terminal_command("claim"))
        assert code is not None
        self.command("111", f"claim {code.group(1)}", name="Boss")
        self.say("111", "hi", name="Boss")
        self.command("111", "add telegram 222 member Minh", name="Boss")

    def call(self, callback: Callable[..., Any], **keywords: Any) -> Any:
        return contextvars.copy_context().run(lambda: callback(**keywords))

    def say(self, user: str, text: str, **how: Any) -> Any:
        """As on any host, without keeping what was said: that would be the test's own memory."""
        seen = super().say(user, text, **how)
        for kept in (self.histories, self.requests, self.sent, self.ran):
            kept.clear()
        return seen

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as conn:
            return conn.execute(sql).fetchall()

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])

    # -- floods

    def write_at_the_first_door(self, messages: int) -> None:
        for number in range(messages):
            self.clock.advance(0.1)
            self.say("999", f"let me in {number}", name="Eve")

    def write_at_the_second_door(self, messages: int) -> None:
        for number in range(messages):
            self.clock.advance(0.1)
            self.say("999", f"let me in {number}", name="Eve", door=False)

    def try_codes(self, messages: int) -> None:
        for number in range(messages):
            self.clock.advance(0.1)
            self.say("999", f"join ABCDE-{10_000 + number}", name="Eve")

    def ask_at_length(self, asks: int) -> str:
        """So many asks of 100 KB, no faster than owners may be asked; the last code."""
        code = ""
        for number in range(asks):
            self.clock.advance(130)
            self.say("222", "run it", name="Minh",
                     tools=[("terminal", {"command": f"{number} {LONG}"})])
            shown = re.search(r"Approval (\w+)", " ".join(self.deliver()))
            code = shown.group(1) if shown is not None else ""
        return code


class Bounds(FolderCase):
    @contextmanager
    def flooded(self) -> Iterator[Flooded]:
        host = Flooded(self.folder / "flooded.db")
        yield host
        host.unload()

    def test_a_stranger_s_messages_are_one_row_a_minute_at_either_door(self):
        with self.flooded() as host:
            for flood in (host.write_at_the_first_door, host.write_at_the_second_door):
                with self.subTest(flood.__name__):
                    before = host.count("audit")
                    flood(1300)  # two minutes and ten seconds of them
                    self.assertLessEqual(host.count("audit") - before, 7)
                    counted = host.rows("""SELECT detail FROM audit WHERE event = 'kept writing'
                                           ORDER BY audit_id DESC LIMIT 1""")
                    self.assertRegex(counted[0][0], r"^\d{3} messages")

    def test_wrong_codes_leave_no_more_than_the_attempts_that_lock_out(self):
        with self.flooded() as host:
            host.try_codes(1300)
            self.assertLessEqual(host.count("attempts"), identity.MAX_WRONG_CODES)
            self.assertLessEqual(host.count("audit"), 30)

    def test_long_arguments_are_kept_whole_while_they_matter_and_cut_afterwards(self):
        with self.flooded() as host:
            code = host.ask_at_length(60)
            lengths = host.rows("SELECT length(args_json) FROM approvals ORDER BY ask_id")
            self.assertLess(lengths[0][0], 700)
            self.assertGreater(lengths[-1][0], len(LONG))
            self.assertLessEqual(sum(length > 4000 for length, in lengths), 29)
            self.assertIn("xxxx", host.command("111", f"show {code}"))
            host.command("111", f"deny {code}")
            self.assertGreater(host.rows("SELECT length(args_json) FROM approvals "
                                         "ORDER BY ask_id DESC LIMIT 1")[0][0], len(LONG))
            first = host.rows("SELECT code FROM approvals ORDER BY ask_id LIMIT 1")[0][0]
            self.assertIn("100016 characters; the rest was not kept",
                          host.command("111", f"show {first}"))

    def test_for_an_hour_after_it_has_ended_a_request_can_be_read_whole(self):
        with self.flooded() as host:
            code = host.ask_at_length(1)
            host.command("111", f"deny {code}")
            for minutes, whole in ((50, True), (20, False)):
                host.clock.advance(minutes * 60)
                host.ask_at_length(1)
                length = host.rows("SELECT length(args_json) FROM approvals LIMIT 1")[0][0]
                self.assertIs(length > len(LONG), whole)

    def test_an_approved_call_is_cut_only_when_its_grant_is_spent_or_over(self):
        with self.flooded() as host:
            code = host.ask_at_length(1)
            host.command("111", f"approve {code} 24h 2x")
            host.clock.advance(2 * 3600)
            host.ask_at_length(1)
            self.assertGreater(host.rows("SELECT length(args_json) FROM approvals")[0][0],
                               len(LONG))
            host.say("222", "again", tools=[("terminal", {"command": f"0 {LONG}"})] * 2)
            host.ask_at_length(1)
            self.assertLess(host.rows("SELECT length(args_json) FROM approvals")[0][0], 700)

    def test_cut_arguments_stay_below_the_length_that_is_cut_whatever_they_hold(self):
        with self.flooded() as host:
            for char in ("\"", "\\", "\u0001", "\U0001f600", "{"):
                host.clock.advance(130)
                host.say("222", "run it", name="Minh",
                         tools=[("terminal", {"command": char * 90_000})])
            for _ in range(3):  # they end, they are let go of, and what is cut stays as it is
                host.clock.advance(7200)
                host.ask_at_length(1)
            cut = host.rows("SELECT args_json FROM approvals ORDER BY ask_id LIMIT 5")
            for text, in cut:
                self.assertLess(len(text), 4000)
                self.assertTrue(transport.argument_lines(text))
            host.ask_at_length(1)
            self.assertEqual(host.rows("SELECT args_json FROM approvals ORDER BY ask_id LIMIT 5"),
                             cut)

    def test_arguments_too_long_for_any_owner_are_refused_and_not_kept(self):
        with self.flooded() as host:
            before = host.path.stat().st_size
            said = host.say("222", "run it", name="Minh", tools=[
                ("terminal", {"command": "x" * transport.MAX_ASK_CHARS})]).results[0]
            self.assertIn("at most 1,000,000", said)
            self.assertEqual(host.count("approvals"), 0)
            self.assertLess(host.path.stat().st_size - before, MIB)

    def test_a_refused_message_is_not_kept_in_memory(self):
        with self.flooded() as host:
            host.say("999", LONG, name="Eve", door=False)
            resolver = host.hooks["pre_llm_call"].__self__._resolver
            self.assertEqual([turn.own_text for turn in resolver._turns.values()
                              if turn.account.sender_id == "999"], [""])


# Plans that read a whole table or index, and why that is a few rows. Anything else is searched.
FEW_ROWS = {
    "SCAN people USING INDEX people_owners": "the owners",
    "SCAN p USING INDEX people_owners": "the owners",
    "SCAN notices USING INDEX notices_unsent": "what waits to be sent",
    "SCAN approvals USING INDEX approvals_granted": "grants that can be spent",
    "SCAN audit": "the newest row",
    "SCAN s": "the newest shared facts",
    "SCAN json_each VIRTUAL TABLE INDEX 1:": "a list of ours",
}


class Plans(FolderCase):
    def test_no_statement_of_a_turn_reads_a_whole_table(self):
        host = Flooded(self.folder / "planned.db")
        self.addCleanup(host.unload)
        store = host.hooks["pre_llm_call"].__self__._store
        said: list[str] = []
        with store.transaction():
            store._conn.set_trace_callback(said.append)
        host.say("222", "keep this", tools=[
            ("manyhands_remember", {"text": "I like tea"}), ("manyhands_share", {"text": "a"}),
            ("manyhands_recall", {"query": "tea"}), ("manyhands_whoami", {}),
            ("terminal", {"command": "ls"})])
        code = re.search(r"Approval (\w+)", " ".join(host.deliver()))
        host.command("111", f"approve {code.group(1)} 3x")
        host.deliver()
        host.say("222", "tea?", tools=[("terminal", {"command": "ls"}), ("patch", {"path": "a"})])
        for text in ("hello", "join ABCDE-FGHJK"):
            host.say("999", text, name="Eve")
            host.say("999", text, name="Eve", door=False)
        store._conn.set_trace_callback(None)
        statements = {sql for sql in said if sql.split()[0] in (
            "SELECT", "UPDATE", "DELETE", "INSERT", "WITH")}
        self.assertGreater(len(statements), 80)
        with closing(sqlite3.connect(host.path)) as conn:
            for sql in sorted(statements):
                for *_, line in conn.execute(f"EXPLAIN QUERY PLAN {sql}"):
                    if line.startswith("SCAN"):
                        self.assertIn(line, FEW_ROWS, sql)
                    if line in ("SCAN audit", "SCAN s"):
                        self.assertRegex(sql, r"ORDER BY (s\.n|audit_id) DESC\s+LIMIT \d")


def resident() -> int:
    """Bytes of this process's memory, as Linux counts them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def full() -> int:
    messages, asks = 100_000, 10_000
    with tempfile.TemporaryDirectory() as folder:
        host = Flooded(Path(folder) / "flooded.db")
        host.write_at_the_first_door(100)
        start = resident()

        def report(name: str) -> tuple[int, int]:
            with closing(sqlite3.connect(host.path)) as conn:
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            size, grown = host.path.stat().st_size, resident() - start
            print(f"{name:48} file {size / MIB:7.1f} MiB, memory {grown / MIB:+6.1f} MiB, "
                  f"audit {host.count('audit'):,} rows", flush=True)
            return size, grown

        host.write_at_the_first_door(messages)
        report(f"{messages:,} messages at the first door")
        host.write_at_the_second_door(messages)
        report(f"{messages:,} messages at the second door")
        host.try_codes(messages)
        report(f"{messages:,} wrong codes")
        host.ask_at_length(asks)
        size, grown = report(f"{asks:,} asks of {len(LONG):,} characters")
        host.unload()
    print(f"bounds: file at most {MOST_FILE / MIB:.0f} MiB, memory at most "
          f"{MOST_MEMORY / MIB:.0f} MiB")
    return int(size > MOST_FILE or grown > MOST_MEMORY)


if __name__ == "__main__":
    if "--full" in sys.argv:
        raise SystemExit(full())
    unittest.main()
