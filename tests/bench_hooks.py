"""What a hook costs, beside one committed INSERT into the same file in the same run.

    python3 tests/bench_hooks.py [N]

Hooks are called on fresh threads, as the host calls them; the floor is one committed INSERT on the
same kind of thread with the same settings. Prints p50, p95, p99 and the ratio of the medians.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from support import ROOT, StandInHost, plugin_module

IMPORT = """
import sys, time
import asyncio, dataclasses, difflib, hashlib, hmac, json, logging, secrets, shlex, sqlite3, typing
sys.path.insert(0, {tests!r})
from support import StandInHost
began = time.perf_counter()
StandInHost({{"db_path": "/nonexistent/never-opened.db"}})
print((time.perf_counter() - began) * 1000)
"""


def timed(call: Callable[[], object], rounds: int) -> list[float]:
    """Microseconds of each call, measured inside a fresh thread."""
    taken: list[float] = []
    def run() -> None:
        time.sleep(0.0005)  # until whoever started this thread waits for it
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e6)
    for _ in range(rounds):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return taken


def row(name: str, taken: list[float], floor: float) -> float:
    cuts = statistics.quantiles(taken, n=100)
    print(f"{name:24} {cuts[49]:9.1f} {cuts[94]:9.1f} {cuts[98]:9.1f} {cuts[49] / floor:7.2f}")
    return cuts[49]


def main(argv: list[str]) -> int:
    rounds = int(argv[0]) if argv else 2000
    with tempfile.TemporaryDirectory() as folder:
        host, config = house(Path(folder))
        store = plugin_module("store").Store(lambda: Path(config["db_path"]), clean=str)
        def insert() -> None:
            with store.transaction() as tx:
                tx.record(now=1.0, kind="turn", event="floor", person_id="telegram:222")
        insert()
        print(f"{rounds} calls each, microseconds")
        print(f"{'':24} {'p50':>9} {'p95':>9} {'p99':>9} {'floors':>7}")
        floor = statistics.median(timed(insert, rounds))
        row("one committed INSERT", timed(insert, rounds), floor)
        for name, call in calls(host).items():
            row(name, timed(call, rounds), floor)
        row("policy.decide", decide_costs(rounds), floor)
        store.close()
        host.unload()
    print(f"import and register()    {import_cost():9.1f} ms (bytecode cached)")
    return 0


def import_cost() -> float:
    """Milliseconds of import plus register() in a fresh process, as at any start but the first."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", IMPORT.format(tests=str(ROOT / "tests"))]
        for _ in range(2):
            shown = subprocess.run(command, capture_output=True, text=True, check=True,
                                   env=environment)
    return float(shown.stdout)


def house(folder: Path) -> tuple[StandInHost, dict[str, str]]:
    config = {"db_path": str(folder / "bench.db")}
    said = StandInHost(config).terminal_command("claim")
    host = StandInHost(config)
    for word in said.replace("`", " ").split():
        if "owns the bot" in host.command("111", f"claim {word}", name="Boss"):
            break
    host.command("111", "add telegram 222 member Minh", name="Boss")
    return host, config


def calls(host: StandInHost) -> dict[str, Callable[[], object]]:
    seen = host.say("222", "hello", name="Minh")
    ids = {"turn_id": seen.turn_id, "session_id": seen.session_id, "task_id": seen.session_id}
    number = itertools.count()
    request = {"model": "m", "messages": [{"role": "system", "content": "s" * 6000},
                                          {"role": "user", "content": "hello"}]}
    def turn() -> object:
        return host.hooks["pre_llm_call"](
            turn_id=f"t{next(number)}", session_id=seen.session_id, task_id=seen.session_id,
            user_message="hello there", platform="telegram", sender_id="222")
    return {
        "pre_llm_call": turn,
        "pre_tool_call": lambda: host.hooks["pre_tool_call"](
            tool_name="web_search", args={"q": "x"}, **ids),
        "post_api_request": lambda: host.hooks["post_api_request"](
            usage={"total_tokens": 10}, **ids),
        "llm_request": lambda: host.middleware["llm_request"](
            request=request, api_mode="chat_completions", **ids),
    }


def decide_costs(rounds: int) -> list[float]:
    """Microseconds of one decision, each the mean of a hundred."""
    policy = plugin_module("policy")
    who = policy.Standing(policy.Role.MEMBER)
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(50):
            policy.decide(who, "terminal")
            policy.decide(who, "next_years_tool")
        taken.append((time.perf_counter() - began) * 1e4)
    return taken


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
