"""What the hooks cost, beside one committed INSERT into the same file in the same run.

    python3 tests/bench_hooks.py [N] [--large [FOLDER]]

Hooks are called on fresh threads, as the host calls them, one of each in turn, so that a noisy
moment of the machine meets all of them. The floor is one committed INSERT of an audit row, with the
audit's two indexes, by the store's own connection on the same kind of thread. Goals are printed
beside the figures; nothing fails on them, because a shared machine's figures prove little.

``--large`` measures the same calls in a file of 10,000 people, 1,000,000 facts and 5,000,000 audit
rows as well. Building it takes some minutes and 3 GB; in FOLDER it is kept and used again.
PyCasbin decides by the same rules where it is installed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT, StandInHost, plugin_module

store = plugin_module("store")
policy = plugin_module("policy")

PEOPLE, FACTS, AUDIT_ROWS = 10_000, 1_000_000, 5_000_000
FACTS_EACH, SHARED = FACTS // PEOPLE, 100
FLOOR = "one committed INSERT"
# p50 in floors: the goals.
GOALS = {"pre_llm_call": 4.0, "pre_tool_call": 2.0, "post_api_request": 2.0}
MOST_GROWTH, MOST_TAIL = 1.25, 5.0
MOST_DECIDE_US, LEAST_TIMES_CASBIN, MOST_MEMORY_MIB, MOST_IMPORT_MS = 3.0, 50.0, 20.0, 50.0

ALONE = """
import sys, time
import asyncio, dataclasses, difflib, hashlib, hmac, json, logging, secrets, shlex, sqlite3, typing
sys.path.insert(0, {tests!r})
from pathlib import Path
from support import StandInHost
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
before, began = resident(), time.perf_counter()
StandInHost({{"db_path": "/nonexistent/never-opened.db"}})
print((time.perf_counter() - began) * 1000)
import bench_hooks
bench_hooks.work({folder!r}, 300)
print(resident() - before)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one kind of call."""

    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, taken: list[float]) -> Cost:
        cuts = statistics.quantiles(taken, n=100)
        return cls(cuts[49], cuts[94], cuts[98], max(taken))


# -- measuring ---------------------------------------------------------------------------------


def measured(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, Cost]:
    """Each call on a fresh thread, one after the other, `rounds` times."""
    taken: dict[str, list[float]] = {name: [] for name in calls}

    def run(name: str) -> None:
        time.sleep(0.0002)  # until whoever started this thread waits for it
        began = time.perf_counter()
        calls[name]()
        taken[name].append((time.perf_counter() - began) * 1e6)

    for _ in range(rounds):
        for name in calls:
            thread = threading.Thread(target=run, args=(name,))
            thread.start()
            thread.join()
    return {name: Cost.of(found) for name, found in taken.items()}


def verdict(met: bool) -> str:
    return "met" if met else "NOT MET"


def print_costs(title: str, costs: dict[str, Cost], smaller: dict[str, Cost] | None) -> None:
    print(f"\n{title}")
    print(f"  {'microseconds':22} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>9} {'floors':>7}")
    floor = costs[FLOOR]
    for name, cost in costs.items():
        floors, notes = cost.p50 / floor.p50, []
        if name in GOALS:
            notes.append(f"goal {GOALS[name]:.0f} floors {verdict(floors <= GOALS[name])}")
        if name in GOALS and not (cost.p99 <= MOST_TAIL * cost.p50 or cost.p99 <= 2 * floor.p99):
            notes.append("tail NOT MET")
        if smaller is not None:
            growth = cost.p50 / smaller[name].p50
            notes.append(f"x {growth:.2f}" + (f" {verdict(growth <= MOST_GROWTH)}"
                                              if name in GOALS else ""))
        print(f"  {name:22} {cost.p50:8.1f} {cost.p95:8.1f} {cost.p99:8.1f} {cost.most:9.1f} "
              f"{floors:7.2f}  {', '.join(notes)}".rstrip())


# -- what is called ----------------------------------------------------------------------------


def house(path: Path) -> StandInHost:
    """An owner and a member on a new file."""
    host = StandInHost({"db_path": str(path)})
    code = re.search(r"claim (\S+)", host.terminal_command("claim"))
    assert code is not None
    host.command("111", f"claim {code.group(1)}", name="Boss")
    host.command("111", "add telegram 222 member Minh", name="Boss")
    return host


def calls(host: StandInHost) -> dict[str, Callable[[], object]]:
    seen = host.say("222", "hello", name="Minh")
    ids = {"turn_id": seen.turn_id, "session_id": seen.session_id, "task_id": seen.session_id}
    number = itertools.count()
    request = {"model": "m", "messages": [{"role": "system", "content": "s" * 6000},
                                          {"role": "user", "content": "hello"}]}
    hooks, middleware = host.hooks, host.middleware

    def turn() -> object:  # in another session: a session's next turn ends the one before
        return hooks["pre_llm_call"](
            turn_id=f"t{next(number)}", session_id="s2", task_id="s2", platform="telegram",
            user_message="what was it that I said about tea?", sender_id="222")
    opened = hooks["pre_llm_call"].__self__._store

    def record() -> None:
        with opened.transaction() as tx:
            tx.record(now=1.0, kind="tool", event="allow", person_id="telegram:222",
                      tool="web_search", detail="role_allow")
    return {
        FLOOR: floor(opened),
        "one audit row, chained": record,
        "pre_llm_call": turn,
        "llm_request": lambda: middleware["llm_request"](
            request=request, api_mode="chat_completions", **ids),
        "pre_tool_call": lambda: hooks["pre_tool_call"](
            tool_name="web_search", args={"q": "x"}, **ids),
        "post_api_request": lambda: hooks["post_api_request"](usage={"total_tokens": 10}, **ids),
    }


def floor(opened: Any) -> Callable[[], object]:
    """One committed INSERT of what one row of the audit is, by the store's own connection."""
    with opened.transaction():
        conn = opened._conn
    for statement in store.SCHEMA:
        if re.search(r"(TABLE|INDEX) audit", statement):
            conn.execute(re.sub(r"(TABLE|INDEX|ON) audit", r"\1 IF NOT EXISTS bench_audit",
                                statement).replace("ON IF NOT EXISTS", "ON"))
    number = itertools.count(conn.execute(
        "SELECT coalesce(max(audit_id), 0) + 1 FROM bench_audit").fetchone()[0])
    insert = store._INSERT_AUDIT.replace("audit", "bench_audit", 1)
    row = (1.0, "tool", "allow", "telegram:222", "web_search", "", "role_allow", "c" * 64)
    return lambda: conn.execute(insert, (next(number), *row))


def work(folder: str, rounds: int) -> None:
    """Some of everything, for the memory that it takes."""
    host = house(Path(folder) / "work.db")
    known = calls(host)
    for _ in range(rounds):
        for call in known.values():
            call()
    host.unload()


# -- a large file ------------------------------------------------------------------------------

WORDS = ("tea", "coffee", "milk", "bread", "garden", "doctor", "school", "piano", "bicycle",
         "holiday", "birthday", "allergy", "window", "kitchen", "mother", "brother", "invoice",
         "passport", "train", "hammer", "paint", "winter", "letter", "shoes")


def person(number: int) -> str:
    return "telegram:222" if number == 0 else f"telegram:{1_000_000 + number}"


def add_facts(path: Path) -> None:
    """What everybody in a large file has, given to the one person of the small file."""
    draw = random.Random(1)
    with closing(store.Store(lambda: path, clean=str)) as opened, opened.transaction() as tx:
        for number in range(FACTS_EACH):
            tx.add_fact(person_id=person(0), text=fact(draw, number), topic="", now=1.0)
        for number in range(SHARED):
            tx.share(author_id=person(0), text=fact(draw, number), now=1.0)


def fact(draw: random.Random, number: int) -> str:
    return f"{' '.join(draw.choices(WORDS, k=6))} {number}"


def build(path: Path) -> None:
    """10,000 people with their facts, the index over them, and a whole chain of audit rows."""
    print(f"building {path} ...", flush=True)
    began = time.perf_counter()
    house(path).unload()
    add_facts(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany("INSERT INTO people VALUES (?, ?, ?, 'member', NULL, 1.0, 'bench')",
                         ((person(n), f"P{n}", f"p{n}") for n in range(1, PEOPLE)))
        conn.executemany("INSERT INTO accounts VALUES ('telegram', ?, ?)",
                         ((person(n).split(":")[1], person(n)) for n in range(1, PEOPLE)))
        conn.executemany("INSERT INTO usage VALUES (?, ?, 10)",
                         ((person(n), day) for n in range(PEOPLE) for day in range(30)))
        add_everybodys_facts(conn)
        conn.executemany(store._INSERT_AUDIT, audit_rows(conn))
        conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    print(f"built in {time.perf_counter() - began:.0f} s: {path.stat().st_size / 2**30:.1f} GiB",
          flush=True)


def add_everybodys_facts(conn: sqlite3.Connection) -> None:
    draw = random.Random(2)
    for number in range(1, PEOPLE):
        rows = [(n, fact(draw, n)) for n in range(1, FACTS_EACH + 1)]
        conn.executemany("INSERT INTO facts VALUES (?, ?, ?, '', ?, 1.0)",
                         ((person(number), n, text, store.digest(text)) for n, text in rows))
        conn.executemany("INSERT INTO terms VALUES (?, ?, ?)",
                         sorted((person(number), term, n) for n, text in rows
                                for term in store.terms(text)))


def audit_rows(conn: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    draw, tx = random.Random(3), store.Tx(conn, str)
    last, chain = tx.audit_head()
    for number in range(last + 1, AUDIT_ROWS + 1):
        row = [number, float(number), "tool", "allow", person(draw.randrange(PEOPLE)),
               "web_search", "", "role_allow"]
        chain = store._link(chain, row)
        yield (*row, chain)


# -- the rest ----------------------------------------------------------------------------------


def per_call(call: Callable[[], object], rounds: int) -> float:
    """Microseconds: the median of means of a hundred."""
    def hundred() -> float:
        began = time.perf_counter()
        for _ in range(100):
            call()
        return (time.perf_counter() - began) * 1e4
    return statistics.median(hundred() for _ in range(rounds))


def print_decide(rounds: int) -> None:
    who = policy.Standing(policy.Role.MEMBER)
    tools = ("terminal", "next_years_tool")
    took = statistics.mean(per_call(lambda tool=tool: policy.decide(who, tool), rounds)
                           for tool in tools)
    print(f"\npolicy.decide             {took:8.2f} us  goal {MOST_DECIDE_US:.0f} us "
          f"{verdict(took <= MOST_DECIDE_US)}")
    enforce = casbin_rules()
    if enforce is None:
        print("PyCasbin                  not installed; pip install casbin to compare")
        return
    theirs = statistics.mean(per_call(lambda tool=tool: enforce(tool, "ask"), max(3, rounds // 20))
                             for tool in tools)
    print(f"PyCasbin, the same rules  {theirs:8.2f} us  x {theirs / took:.0f}, goal "
          f"x {LEAST_TIMES_CASBIN:.0f} {verdict(theirs / took >= LEAST_TIMES_CASBIN)}")


CASBIN_MODEL = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && keyMatch(r.obj, p.obj) && r.act == p.act
"""


def casbin_rules() -> Callable[[str, str], bool] | None:
    """(tool, state) of a member, decided by PyCasbin from the plugin's own buckets."""
    try:
        import casbin  # a comparison, wherever it happens to be installed
    except ImportError:
        return None
    model = casbin.Enforcer.new_model(text=CASBIN_MODEL)
    enforcer = casbin.Enforcer(model)
    member = policy.Role.MEMBER
    for state, buckets in (("allow", policy.ALLOW_BUCKETS), ("ask", policy.ASK_BUCKETS)):
        for name in buckets[member].names():
            enforcer.add_policy("member", name, state)
    who = policy.Standing(member)
    for tool in [*policy.MEMBER_ALLOW.exact, *policy.MEMBER_ASK.exact, "browser_click", "nobodys"]:
        for state in ("allow", "ask"):
            assert enforcer.enforce("member", tool, state) == (
                policy.decide(who, tool).state.value == state), (tool, state)
    return lambda tool, state: bool(enforcer.enforce("member", tool, state))


def print_start() -> None:
    """Import, register() and memory, in a fresh process, as at any start but the first."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(2):
            code = ALONE.format(tests=str(ROOT / "tests"), folder=f"{cache}/{number}")
            Path(f"{cache}/{number}").mkdir()
            shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                   check=True, env=environment)
    started, memory = map(float, shown.stdout.split())
    print(f"import and register()     {started:8.1f} ms  goal {MOST_IMPORT_MS:.0f} ms "
          f"{verdict(started <= MOST_IMPORT_MS)} (bytecode cached)")
    print(f"memory added              {memory:8.1f} MiB goal {MOST_MEMORY_MIB:.0f} MiB "
          f"{verdict(memory <= MOST_MEMORY_MIB)}")


def measure_file(path: Path, rounds: int) -> dict[str, Cost]:
    host = StandInHost({"db_path": str(path)})
    costs = measured(calls(host), rounds)
    host.unload()
    return costs


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What the hooks cost.")
    parser.add_argument("rounds", nargs="?", type=int, default=1000, metavar="N",
                        help="calls of each kind, 1000 unless told otherwise, 10 at least")
    parser.add_argument("--large", nargs="?", const="", metavar="FOLDER",
                        help="in a large file as well, which is kept in FOLDER where one is named")
    given = parser.parse_args(argv)
    rounds = max(10, given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        empty, small = Path(folder) / "empty.db", Path(folder) / "small.db"
        house(empty).unload()
        house(small).unload()
        add_facts(small)
        print(f"{rounds} calls of each, on fresh threads; SQLite {sqlite3.sqlite_version}\n"
              "floors: how many times the p50 of one committed INSERT that is. The goals are what\n"
              "the project aims at; a model's answer takes ten thousand times as long as any.")
        print_costs("an owner and a member, nothing noted", measure_file(empty, rounds), None)
        costs = measure_file(small, rounds)
        print_costs(f"the member has {FACTS_EACH} facts and sees {SHARED} shared ones", costs, None)
        if given.large is not None:
            large = Path(given.large or folder) / "large.db"
            if not large.exists():
                build(large)
            print_costs(f"the same among {PEOPLE:,} people, {FACTS:,} facts, {AUDIT_ROWS:,} audit "
                        "rows", measure_file(large, rounds), costs)
    print_decide(min(rounds, 200))
    print_start()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
