"""The life of an ask, at random against a small model, and raced by real processes."""

from __future__ import annotations

import random
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from support import NOON, UID, StoreCase, counting_draw, plugin_module

identity = plugin_module("identity")
policy = plugin_module("policy")
transport = plugin_module("transport")

TIMEOUT_S, GRANT_S = 120.0, 600.0
MINH = "telegram:222"


class Model:
    """What should be: at most one open ask, and the grants that an owner's answer opened."""

    def __init__(self) -> None:
        self.open: dict[str, Any] | None = None
        self.grants: list[dict[str, Any]] = []
        self.denied: dict[int, float] = {}
        self.parked: list[float] = []

    def sweep(self, now: float) -> None:
        if self.open and self.open["until"] <= now:
            self.open = None
        self.grants = [g for g in self.grants if g["uses"] and g["until"] > now]

    def call(self, args: int, now: float) -> bool:
        self.sweep(now)
        for grant in sorted(self.grants, key=lambda g: (g["until"], g["id"])):
            if grant["any"] or grant["args"] == args:
                grant["uses"] -= 1
                return True
        return False

    def end(self) -> None:
        self.open, self.grants = None, []


class RandomLives(StoreCase):
    """Two thousand steps each: what runs is what the model says, and an owner's row allows it."""

    def setUp(self) -> None:
        super().setUp()
        self.add(MINH, "member", "Minh")
        self.add("telegram:111", "owner", "Boss")
        self.resolver = identity.Resolver(uid=UID, settings=policy.Settings,
                                           monotonic=lambda: 0.0)
        self.desk = transport.Desk(
            self.store, self.resolver, settings=policy.Settings, draw=counting_draw(),
            nonce=iter(map(str, range(10**9))).__next__, inject=None)
        self.model = Model()
        self.runs = self.allowed = 0

    def who(self, tx: Any, key: str) -> Any:
        return self.resolver.principal(tx, identity.Account.of_key(key), identity.Evidence.TURN)

    def step_call(self, rng: random.Random) -> None:
        args, now = rng.randrange(3), self.clock()
        expected = self.model.call(args, now)
        with self.store.transaction() as tx:
            outcome = self.desk.ask(tx, self.who(tx, MINH), "terminal",
                                    transport.Arguments.of({"n": args}), "", now=now)
            row = tx.ask(ask_id=outcome.ask_id)
        self.assertEqual(outcome.runs, expected)
        self.runs += outcome.runs
        if row is not None and (not self.model.open or self.model.open["id"] != row["ask_id"]):
            self.model.open = {"id": row["ask_id"], "code": row["code"], "args": args,
                               "until": now + transport.SHOWN_WITHIN_S + TIMEOUT_S}

    def step_show(self, rng: random.Random) -> None:
        now = self.clock()
        self.model.sweep(now)
        with self.store.transaction() as tx:
            self.desk.sweep(tx, now=now)
            ask = tx.open_ask(person_id=MINH, tool="terminal")
            self.assertEqual(ask is not None, self.model.open is not None)
            if ask is not None and self.model.open is not None:
                first = ask["shown_at"] is None
                self.desk.prompt(tx, ask, now=now)
                if first:
                    self.model.open["until"] = min(self.model.open["until"], now + TIMEOUT_S)

    def step_approve(self, rng: random.Random) -> None:
        now, (words, uses, for_s, anyway) = self.clock(), rng.choice((
            ("", 1, GRANT_S, False), ("3x", 3, 86400.0, False), ("5m", 100, 300.0, False),
            ("2x 10m any", 2, 600.0, True)))
        code = self.some_code(rng)
        self.model.sweep(now)
        expected = self.model.open is not None and self.model.open["code"] == code
        with self.store.transaction() as tx:
            said = self.desk.approve(tx, self.who(tx, "telegram:111"), code,
                                     transport.Terms.of(words.split()), now=now)
        self.assertEqual(said.startswith("Approved"), expected, said)
        if expected and self.model.open is not None:
            self.model.grants.append({"id": self.model.open["id"], "args": self.model.open["args"],
                                      "any": anyway, "uses": uses, "until": now + for_s})
            self.model.open, self.allowed = None, self.allowed + uses

    def step_deny(self, rng: random.Random) -> None:
        now, code = self.clock(), self.some_code(rng)
        self.model.sweep(now)
        expected = self.model.open is not None and self.model.open["code"] == code
        with self.store.transaction() as tx:
            said = self.desk.deny(tx, self.who(tx, "telegram:111"), code, "no", now=now)
        self.assertEqual(said.startswith("Denied"), expected, said)
        if expected:
            self.model.open = None

    def step_foreign(self, rng: random.Random) -> None:
        """The asker, a stranger or a guest types the code: never an approval."""
        code = self.some_code(rng)
        with self.store.transaction() as tx:
            said = self.desk.approve(tx, self.who(tx, rng.choice((MINH, "telegram:999"))), code,
                                     now=self.clock())
        self.assertNotIn("Approved", said)
        self.model.sweep(self.clock())

    def step_end(self, rng: random.Random) -> None:
        now = self.clock()
        with self.store.transaction() as tx:
            if rng.random() < 0.5:
                identity.change_role(tx, MINH, policy.Role.MEMBER, by="test", now=now)
            else:
                tx.end_asks(person_id=None, now=now)
        self.model.end()

    def step_revoke(self, rng: random.Random) -> None:
        now = self.clock()
        self.model.sweep(now)
        with self.store.transaction() as tx:
            live = self.desk.grants(tx, person_id=None, now=now)
            self.assertEqual(sorted(g["ask_id"] for g in live),
                             sorted(g["id"] for g in self.model.grants))
            if live:
                self.desk.revoke(tx, self.who(tx, "telegram:111"), live[0]["code"], now=now)
                self.model.grants = [g for g in self.model.grants if g["id"] != live[0]["ask_id"]]

    def step_time(self, rng: random.Random) -> None:
        """Mostly onward; sometimes the clock jumps back, which revives nothing that was swept."""
        self.model.sweep(self.clock())
        with self.store.transaction() as tx:
            self.desk.sweep(tx, now=self.clock())
        self.clock.advance(rng.choice((1.0, 30.0, 119.0, 121.0, 700.0, 2000.0, -50.0)))

    def some_code(self, rng: random.Random) -> str:
        if self.model.open is not None and rng.random() < 0.8:
            return str(self.model.open["code"])
        return rng.choice(("AAAA", "zzzz", ""))

    def test_what_runs_is_what_an_owner_opened_and_never_more(self):
        steps = [self.step_call] * 5 + [self.step_show, self.step_approve, self.step_approve,
                 self.step_deny, self.step_foreign, self.step_end, self.step_revoke,
                 self.step_time, self.step_time]
        for seed in range(6):
            rng = random.Random(seed)
            with self.subTest(seed=seed):
                for _ in range(400):
                    rng.choice(steps)(rng)
        self.assertGreater(self.runs, 50, "the walk exercised runs at all")
        self.assertLessEqual(self.runs, self.allowed)
        with self.store.transaction() as tx:
            rows = tx.trail(person_id=MINH, since=0.0, limit=10**6)
            events = [row["event"] for row in rows]
        self.assertEqual(events.count("spent"), self.runs)


RACER = """
import sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from support import plugin_module
store = plugin_module("store").Store(lambda: Path({path!r}), clean=str)
print("ready", flush=True)
for line in sys.stdin:
    number, won = int(line), []
    start = threading.Barrier(16)
    def spend():
        start.wait()
        with store.durable_transaction() as tx:
            if tx.spend_grant(person_id={minh!r}, tool="terminal", args_digest=str(number),
                              now={noon!r}) is not None:
                won.append(1)
    threads = [threading.Thread(target=spend) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(won), flush=True)
"""


class TwoGateways(StoreCase):
    """Two real processes of sixteen threads each, racing for one grant; `rounds` of them."""

    rounds = 20

    def test_spend_each_grant_once(self):
        self.assertEqual(race(self, self.rounds), self.rounds)


def race(case: StoreCase, rounds: int) -> int:
    """In how many rounds exactly one of all threads of both processes spent the grant."""
    case.add(MINH, "member", "Minh")
    code = RACER.format(tests=str(Path(__file__).parent), path=str(case.path), minh=MINH,
                        noon=NOON)
    racers = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        once = 0
        for number in range(rounds):
            grant(case, number)
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{number}\n")
                racer.stdin.flush()
            once += sum(int(r.stdout.readline()) for r in racers if r.stdout is not None) == 1
        return once
    finally:
        for racer in racers:
            racer.stdin.close() if racer.stdin is not None else None
            racer.wait(30)
            racer.stdout.close() if racer.stdout is not None else None


def grant(case: StoreCase, number: int) -> None:
    """One open grant whose arguments' digest is the round's number."""
    with case.store.transaction() as tx:
        ask_id = tx.park(code=f"R{number}", kind="tool", person_id=MINH, tool="terminal",
                         args_json="{}", args_digest=str(number), binding="arguments",
                         differs=False, via="", chat="", now=NOON, expires_at=NOON + 60)
        tx.close_ask(ask_id=ask_id, outcome="approved", answered_by="telegram:111", reason="",
                     now=NOON, uses=1, grant_until=NOON + 60)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--race"]:  # python3 tests/test_asks.py --race 1000
        TwoGateways.rounds = int(sys.argv.pop(2))
        sys.argv.remove("--race")
    unittest.main()
