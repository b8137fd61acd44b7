"""A store that an earlier version wrote is brought up to date in place, with nothing lost.

`old_stores` holds what each earlier form of the file looked like after a small household had used
it: a dump whose first line names the instant, an open invite's code, a grant and an open ask.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import unittest
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

from support import ROOT, FolderCase, StandInHost, plugin_module

module = plugin_module("store")
STORE_DOWN = plugin_module("identity").STORE_DOWN
OLD = sorted((ROOT / "tests" / "old_stores").glob("*.sql"))
# Each released schema: what SCHEMA was, with blanks collapsed, under the version of that name.
RELEASED = {2: "a7b8695ce0b389983306e5e782c437ad7687103e5a376ed1953cd3052f0318e3"}
FIRST_LINE = re.compile(r"-- now (\d+) invite (\S+) grant (\S+) open (\S+)")


def schema(conn: sqlite3.Connection) -> dict[str, object]:
    """Tables by their columns, and indexes by their statements; defaults and order left out."""
    found: dict[str, object] = {}
    for name, kind, sql in conn.execute("SELECT name, type, sql FROM sqlite_master").fetchall():
        if kind == "table":
            found[name] = {(row[1], row[2], row[3], row[5]) for row in
                           conn.execute(f"PRAGMA table_info({name})")}
            found[f"checks of {name}"] = sorted(re.findall(
                r"CHECK \((?:[^()]|\([^()]*\))*\)", sql or ""))
        else:
            found[name] = " ".join((sql or "").split())
    return found


class Released(unittest.TestCase):
    def test_a_released_schema_is_never_edited(self):
        made = module.digest("\n".join(" ".join(sql.split()) for sql in module.SCHEMA))
        self.assertEqual(
            RELEASED.get(module.SCHEMA_VERSION), made,
            "SCHEMA has changed. Append a step to UPGRADES, put a dump of a file that the version "
            "before wrote into tests/old_stores, and name the new digest here.")

    def test_every_version_before_this_one_has_a_dump(self):
        written = {re.search(r"PRAGMA user_version = (\d+)", dump.read_text("utf-8"))[1]
                   for dump in OLD}
        self.assertEqual(written, {str(n) for n in range(1, module.SCHEMA_VERSION)})


class Upgrades(FolderCase):
    def opened(self, dump: Path) -> tuple[StandInHost, Path]:
        path = self.folder / f"{dump.stem}.db"
        with closing(sqlite3.connect(path)) as conn:
            conn.executescript(dump.read_text(encoding="utf-8"))
        now = float(self.facts_of(dump)[0]) + 10
        with mock.patch("time.time", lambda: now):  # `register` takes the clock with it
            host = StandInHost({"db_path": str(path)})
        self.addCleanup(host.unload)
        return host, path

    def facts_of(self, dump: Path) -> tuple[str, ...]:
        found = FIRST_LINE.match(dump.read_text(encoding="utf-8"))
        assert found is not None, dump
        return found.groups()

    def for_each(self, check: Callable[[Path, StandInHost, Path], None]) -> None:
        self.assertEqual(len(OLD), 4)
        for dump in OLD:
            with self.subTest(dump.stem):
                check(dump, *self.opened(dump))

    def test_every_old_form_has_the_schema_of_a_fresh_file_afterwards(self):
        fresh = StandInHost({"db_path": str(self.folder / "fresh.db")})
        fresh.terminal_command("claim")
        fresh.unload()
        with closing(sqlite3.connect(self.folder / "fresh.db")) as conn:
            wanted = schema(conn)
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            host.terminal_command("roster")
            with closing(sqlite3.connect(path)) as conn:
                self.assertEqual(schema(conn), wanted)
                self.assertEqual(conn.execute("PRAGMA user_version").fetchone(),
                                 (module.SCHEMA_VERSION,))
                self.assertEqual(conn.execute("PRAGMA integrity_check").fetchone(), ("ok",))
        self.for_each(check)

    def test_people_their_rights_and_their_facts_are_as_they_were(self):
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            roster = host.command("111", "roster")
            self.assertRegex(roster, r"(?s)Boss.*owner.*Minh.*member.*Lan.*guest")
            self.assertIn("notes_write", host.command("111", "tools Minh"))
            self.assertIn("of 5,000", host.command("333", "whoami"))
            found = host.say("222", "peanuts?", tools=[
                ("manyhands_recall", {"query": "erdnüsse"})]).results[0]
            self.assertIn("allergic", found)
            self.assertIn("绿茶", host.say("333", "tea?", tools=[
                ("manyhands_recall", {"query": "绿茶"})]).results[0])
            self.assertIn("fridge", host.command("333", "facts"))
        self.for_each(check)

    def test_a_notice_keeps_what_it_is_and_an_old_kind_has_its_new_name(self):
        def kinds(path: Path) -> list[tuple[str, str]]:
            with closing(sqlite3.connect(path)) as conn:
                return conn.execute("SELECT nonce, kind FROM notices ORDER BY nonce").fetchall()
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            before = kinds(path)
            host.terminal_command("roster")
            self.assertEqual(kinds(path), [(nonce, {"told": "news"}.get(kind, kind))
                                           for nonce, kind in before])
            self.assertGreater(len({kind for _, kind in before}), 1)
        self.for_each(check)

    def test_notes_that_the_first_forms_indexed_by_other_terms_are_indexed_afresh(self):
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            if dump.stem not in ("version-1-first", "version-1-outcomes"):
                return
            with closing(sqlite3.connect(path)) as conn, conn:
                conn.execute("UPDATE terms SET term = 'an old term ' || term")
            self.assertIn("fridge", host.say("222", "wifi?", tools=[
                ("manyhands_recall", {"query": "wifi"})]).results[0])
            self.assertIn("绿茶", host.say("333", "tea?", tools=[
                ("manyhands_recall", {"query": "绿茶"})]).results[0])
        self.for_each(check)

    def test_while_a_large_file_is_upgraded_calls_are_refused_and_then_all_works(self):
        def slow(conn: sqlite3.Connection) -> None:
            self.assertTrue(go_on.wait(30))
            module._to_version_2(conn)
        for dump in OLD[:1]:
            go_on = threading.Event()
            host, _ = self.opened(dump)
            with mock.patch.object(module, "UPGRADES", (slow,)), \
                    mock.patch.object(module, "BUSY_TIMEOUT_S", 0.1), \
                    self.assertLogs("manyhands", "ERROR") as logged:
                for _ in range(2):
                    self.assertEqual(host.say("222", "hi").reply, STORE_DOWN)
                go_on.set()
                for thread in threading.enumerate():
                    if thread.name == "manyhands-upgrade":
                        thread.join(30)
            self.assertIn("being brought up to date", logged.output[0])
            self.assertEqual(host.say("222", "hi").reply, "ECHO: hi")

    def test_an_open_ask_a_grant_and_an_invite_still_work_and_are_told_in_the_audit(self):
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            _, invite, grant, waiting = self.facts_of(dump)
            if dump.stem != "version-1-first":  # whose grants were for one run, which it had
                again = host.say("222", "again", tools=[("terminal", {"command": "make backup"})])
                self.assertEqual(again.results, ["ran terminal"])
            self.assertIn("Approved", host.command("111", f"approve {waiting}"))
            self.assertIn("Welcome", host.say("555", f"join {invite}", name="Kim").reply)
            story = host.command("111", "audit all")
            self.assertIn(grant, story)
            self.assertIn(waiting, story)
        self.for_each(check)

    def test_the_chain_is_whole_and_shows_what_is_changed_in_an_old_row(self):
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            self.assertIn("The audit is whole", host.command("111", "verify"))
            with closing(sqlite3.connect(path)) as conn:
                conn.execute("UPDATE audit SET detail = 'x' WHERE audit_id = 7")
                conn.commit()
            self.assertRegex(host.command("111", "verify"), r"\b7\b")
        self.for_each(check)

    def test_numbers_go_on_where_they_were(self):
        def numbers(path: Path) -> dict[str, int]:
            with closing(sqlite3.connect(path)) as conn:
                return {**dict(conn.execute("SELECT name, seq FROM sqlite_sequence")),
                        "audit": conn.execute("SELECT max(audit_id) FROM audit").fetchone()[0]}
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            before = numbers(path)
            host.terminal_command("roster")
            self.assertEqual(numbers(path), before)
        self.for_each(check)

    def test_an_upgrade_that_fails_half_way_leaves_the_old_file_and_works_the_next_time(self):
        def broken(conn: sqlite3.Connection) -> None:
            module._to_version_2(conn)
            raise sqlite3.OperationalError("disk I/O error")
        def check(dump: Path, host: StandInHost, path: Path) -> None:
            with closing(sqlite3.connect(path)) as conn:
                before = list(conn.iterdump())
            with mock.patch.object(module, "UPGRADES", (broken,)), \
                    self.assertLogs("manyhands", "ERROR"):
                self.assertIn("not", host.command("111", "roster"))
            with closing(sqlite3.connect(path)) as conn:
                self.assertEqual(list(conn.iterdump()), before)
                self.assertEqual(conn.execute("PRAGMA user_version").fetchone(), (1,))
            self.assertIn("Minh", host.command("111", "roster"))
        self.for_each(check)


if __name__ == "__main__":
    unittest.main()
