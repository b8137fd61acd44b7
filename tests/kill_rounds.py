"""Processes that are killed at a random moment, and two that write one file: nothing is lost.

``kill_rounds.py [rounds] [hammer seconds]``; 200 rounds and a minute unless told otherwise. A
child asks, approves, spends, remembers and is audited on the stand-in host, and prints a line for
each thing that the plugin reported done. Whatever it printed before it was killed has to be in
the file, and no grant may have run more often than it allowed. Exits with 1 when that fails.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from support import StandInHost, plugin_module

BOSS, USES = "111", 3
TOOL = "terminal"
Report = tuple[str, ...]


# -- the child ---------------------------------------------------------------------------------


class Worker:
    """One process of the bot: every call passes the plugin's own hooks, tools and verbs."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.host = StandInHost({"db_path": str(path)})
        self._eye: sqlite3.Connection | None = None

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """The file as another program sees it: only what is committed."""
        if self._eye is None:
            self._eye = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=10,
                                        isolation_level=None)
        return self._eye.execute(sql, params).fetchall()

    def report(self, *what: object) -> None:
        print(json.dumps([str(part) for part in what]), flush=True)

    def work(self, first: int) -> None:
        self._claim()
        self._spend_what_is_left()
        number = first
        while True:
            self._cycle(str(number))
            number += 1

    def _claim(self) -> None:
        said = self.host.terminal_command("claim")
        code = next(word for word in said.split()
                    if plugin_module("identity").looks_like_secret(word))
        if "Welcome" in self.host.command(BOSS, f"claim {code}", name="Boss"):
            self.report("person", f"telegram:{BOSS}")

    def _spend_what_is_left(self) -> None:
        """Grants that a killed process left open: each may run only what is left of it."""
        for person, args in self.rows(
                "SELECT person_id, args_json FROM approvals WHERE uses_left > 0"):
            user = person.partition(":")[2]
            self._spend(self._turn(user), user, json.loads(args))

    def _cycle(self, user: str) -> None:
        """One person's life: joins, asks, is approved, runs, remembers."""
        if "on the roster now" in self._boss(f"add telegram {user} member M{user}"):
            self.report("person", f"telegram:{user}")
        turn, args = self._turn(user), {"command": f"make {user}"}
        block = self._call(turn, TOOL, args)
        if block is None:
            self.report("run", f"telegram:{user}")
        else:
            self._asked(user, block)
        self._spend(turn, user, args)
        self._remember(turn, user)
        self.report("audit", *self.rows("SELECT max(audit_id) FROM audit")[0])
        self.host.injected.clear()

    def _boss(self, line: str) -> str:
        return self.host.command(BOSS, line, name="Boss")

    def _turn(self, user: str) -> dict[str, str]:
        session = f"s-{user}"
        ids = {"session_id": session, "task_id": session, "turn_id": f"{self.name}-{user}"}
        with self.host.bound(PLATFORM="telegram", USER_ID=user, CHAT_ID=user, CHAT_TYPE="dm"):
            self.host.hooks["pre_llm_call"](**ids, user_message="x", platform="telegram",
                                            sender_id=user)
        return ids

    def _call(self, turn: dict[str, str], tool: str, args: dict[str, Any]) -> str | None:
        """None: it runs. Otherwise the words of the block."""
        answer = self.host.hooks["pre_tool_call"](tool_name=tool, args=args, **turn)
        return None if answer is None else str(answer["message"])

    def _newest_ask(self, user: str) -> tuple[Any, ...]:
        return self.rows("SELECT code, closed_at IS NULL FROM approvals "
                         "WHERE person_id = ? ORDER BY ask_id DESC LIMIT 1", f"telegram:{user}")[0]

    def _asked(self, user: str, block: str) -> None:
        if not block.startswith("Not run:"):
            return
        code, is_open = self._newest_ask(user)
        self.report("asked", code)
        said = self._boss(f"approve {code} {USES}x") if is_open else ""
        if said.startswith("Approved"):
            self.report("approved", code)

    def _spend(self, turn: dict[str, str], user: str, args: dict[str, Any]) -> None:
        """Until it is refused: never more often than was approved."""
        for _ in range(USES + 1):
            if not self.rows("SELECT 1 FROM approvals WHERE person_id = ? AND uses_left > 0",
                             f"telegram:{user}"):
                return
            if self._call(turn, TOOL, args) is not None:
                return
            self.report("run", f"telegram:{user}")

    def _remember(self, turn: dict[str, str], user: str) -> None:
        tool, text = "manyhands_remember", f"fact of {user} from {self.name}"
        if self._call(turn, tool, {"text": text}) is None:
            said = json.loads(self.host.tools[tool].handler(
                {"text": text}, session_id=turn["session_id"], task_id=turn["task_id"]))
            if said.get("stored"):
                self.report("fact", f"telegram:{user}", said["number"], text)


# -- the parent --------------------------------------------------------------------------------


class Child:
    """A worker in a process of its own, and what it has reported so far."""

    def __init__(self, path: Path, name: str, first: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--child", str(path), name, str(first)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self.began = threading.Event()
        self._errors: list[str] = []
        self._ended_early = False
        self._readers = [threading.Thread(target=self._read), threading.Thread(
            target=lambda: self._errors.extend(self._process.stderr or []))]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or []:
            self._lines.append(line)
            self.began.set()
        self.began.set()

    def kill_after(self, seconds: float) -> list[Report]:
        """SIGKILL in the middle of whatever it does; every whole line that it printed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        self._ended_early = self._process.poll() is not None
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return [tuple(json.loads(line)) for line in self._lines if line.endswith("\n")]

    @property
    def trouble(self) -> list[str]:
        """It ends only by being killed; what it said on standard error when it did not."""
        return [f"a child ended by itself: {''.join(self._errors)[-800:]}"] \
            if self._ended_early else []


def problems(path: Path, reports: Sequence[Report]) -> Iterator[str]:
    """What of the reports the file does not hold, and what it holds that may not be."""
    if not path.exists():
        if reports:
            yield "there is no file"
        return
    with closing(sqlite3.connect(path, timeout=10)) as conn:
        yield from _damage(conn)
        if conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            yield from _lost(conn, reports)
            yield from _run_twice(conn, reports)
        elif reports:
            yield "the file is empty"
    yield from _not_opened(path)


def _damage(conn: sqlite3.Connection) -> Iterator[str]:
    sound = conn.execute("PRAGMA integrity_check").fetchall()
    if sound != [("ok",)]:
        yield f"integrity_check: {sound[:3]}"
    if conn.execute("PRAGMA foreign_key_check").fetchone():
        yield "foreign_key_check finds rows"


def _lost(conn: sqlite3.Connection, reports: Sequence[Report]) -> Iterator[str]:
    """Every reported row is there, by the column that tells it from all others."""
    kept: dict[str, set[Report]] = {
        "person": set(conn.execute("SELECT person_id FROM people")),
        "asked": set(conn.execute("SELECT code FROM approvals")),
        "approved": set(conn.execute("SELECT code FROM approvals WHERE outcome = 'approved'")),
        "fact": set(conn.execute("SELECT person_id, CAST(n AS TEXT), text FROM facts"))}
    for kind, *key in reports:
        if kind in kept and tuple(key) not in kept[kind]:
            yield f"lost: {kind} {key}"
    told = set(conn.execute("SELECT event, code FROM audit WHERE code <> ''"))
    for kind, *key in reports:
        if kind in ("asked", "approved") and (kind, key[0]) not in told:
            yield f"lost: the audit row of {kind} {key}"
    most, rows = conn.execute("SELECT coalesce(max(audit_id), 0), count(*) FROM audit").fetchone()
    reported = max((int(key[0]) for kind, *key in reports if kind == "audit"), default=0)
    if most < reported or rows != most:
        yield f"lost: {reported} audit rows were reported, {rows} are there up to number {most}"


def _run_twice(conn: sqlite3.Connection, reports: Sequence[Report]) -> Iterator[str]:
    """Each run has left its audit row and one use less; there are never more than were allowed."""
    ran = Counter(key[0] for kind, *key in reports if kind == "run")
    spent = Counter(code for code, in conn.execute(
        "SELECT code FROM audit WHERE event = 'spent'"))
    allowed: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for code, person, left in conn.execute(
            "SELECT code, person_id, uses_left FROM approvals WHERE outcome = 'approved'"):
        allowed[person] += USES
        written[person] += spent[code]
        if spent[code] + left != USES:
            yield f"half applied: {code} spent {spent[code]}, left {left} of {USES}"
    for person, runs in ran.items():
        if runs > allowed[person]:
            yield f"double run: {person} was allowed {allowed[person]} and ran {runs}"
        if runs > written[person]:
            yield f"lost: {person} ran {runs} times, {written[person]} are in the audit"


def _not_opened(path: Path) -> Iterator[str]:
    """The plugin itself opens what a killed process left behind."""
    store = plugin_module("store")
    opened = store.Store(lambda: path, clean=str)
    try:
        with opened.transaction() as tx:
            tx.owners()
    except store.StoreError as error:
        yield f"it does not open: {error}"
    finally:
        opened.close()


class Rounds:
    """Kills, one after the other, mostly on one growing file."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self._number, self._reports = 0, list[Report]()
        self._path = folder / "0.db"
        self.counts: Counter[str] = Counter()

    def one(self, *, longest_s: float) -> list[str]:
        """One child, killed: in its first moments on a new file, or at work on the old one."""
        self._number += 1
        is_new = self._number % 5 == 1
        if is_new:
            self._path, self._reports = self._folder / f"{self._number}.db", []
        child = Child(self._path, f"c{self._number}", 10_000 * self._number)
        if is_new and self._chance.random() < 0.5:
            self.counts["killed while starting"] += 1
        else:
            child.began.wait(20)
        reports = child.kill_after(self._chance.uniform(0.0, longest_s))
        self.counts.update(["rounds", *(report[0] for report in reports)])
        self._reports += reports
        return [*child.trouble, *problems(self._path, self._reports)]


def hammer(folder: Path, seconds: float) -> tuple[Counter[str], list[str]]:
    """Two processes live the same people's lives at once, until both are killed."""
    path = folder / "hammer.db"
    pair = [Child(path, name, 10_000) for name in ("a", "b")]
    for child in pair:
        child.began.wait(20)
    pair_reports = [child.kill_after(wait) for child, wait in zip(pair, (seconds, 0), strict=True)]
    reports = [report for each in pair_reports for report in each]
    wrong = [line for child in pair for line in child.trouble]
    return Counter(report[0] for report in reports), [*wrong, *problems(path, reports)]


def main(rounds: int, hammer_s: float) -> int:
    began, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="manyhands-kill-") as folder:
        seed = random.SystemRandom().randrange(10**6)
        killed = Rounds(Path(folder), seed=seed)
        for number in range(1, rounds + 1):
            for problem in killed.one(longest_s=0.5):
                wrong += 1
                print(f"WRONG in round {number} (seed {seed}): {problem}")
        print(f"kills (seed {seed}): {_told(killed.counts)}; {time.monotonic() - began:.0f} s")
        counts, found = hammer(Path(folder), hammer_s) if hammer_s else (Counter[str](), [])
        for problem in found:
            print(f"WRONG after the hammer: {problem}")
        print(f"two processes for {hammer_s:.0f} s: {_told(counts)}")
    wrong += len(found)
    print(f"{wrong} wrong; {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in sorted(counts)) or "nothing"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        Worker(Path(sys.argv[2]), sys.argv[3]).work(int(sys.argv[4]))
    given = [float(word) for word in sys.argv[1:]]
    raise SystemExit(main(int(given[0]) if given else 200, given[1] if given[1:] else 60.0))
