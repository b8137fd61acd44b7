"""Damaged provider requests through the real middleware: no exception, no canary, never passed.

    python3 tests/fuzz_requests.py [N]

Each request is one that some api mode of the host builds, with places of it replaced, dropped or
doubled at random (seeded), sent for a member, a guest and nobody. Exits 1
when the operator's material is in what would leave, or when a request is passed on unread.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from support import StandInHost
from test_prompt import SECRET, AnyRequestIsRewrittenOrRefused

SPEAKERS = (("222", "Minh"), ("333", "Kid"))


def house(folder: Path) -> StandInHost:
    """A claimed bot with a member and a guest."""
    config = {"db_path": str(folder / "fuzz.db")}
    code = StandInHost(config).terminal_command("claim").split()[-1]
    host = StandInHost(config)
    host.command("111", f"claim {code}", name="Boss")
    host.command("111", "add telegram 222 member Minh", name="Boss")
    host.command("111", "add telegram 333 guest Kid", name="Boss")
    return host


def turns(host: StandInHost) -> list[dict[str, str]]:
    """The ids of a member's turn, of a guest's, and of one that nobody can be named for."""
    found = [{"turn_id": "nobody's", "session_id": "cold", "task_id": "t"}]
    for user, name in SPEAKERS:
        seen = host.say(user, "hi", name=name)
        found.append({"turn_id": seen.turn_id, "session_id": seen.session_id, "task_id": "t"})
    return found


def send(host: StandInHost, dice: random.Random, source: Any,
         ids: dict[str, str]) -> tuple[str, str]:
    """(what came of one damaged request, what would leave for the provider)."""
    request, mode = source.request(dice)
    changed = host.middleware["llm_request"](
        request=request, platform="telegram",
        api_mode=dice.choice((mode, mode, mode, "", "novel")), **ids)
    if not isinstance(request, dict):
        return "no request", repr(changed)
    if not isinstance(changed, dict) or not isinstance(changed.get("request"), dict):
        return "PASSED UNREAD", repr(request)
    text = repr(changed["request"])
    return ("LEAKED" if SECRET in text else "rewritten"), text


def main(argv: list[str]) -> int:
    count = int(argv[0]) if argv else 20_000
    logging.getLogger("manyhands").addHandler(logging.NullHandler())
    dice, source, outcomes = random.Random(20_000), AnyRequestIsRewrittenOrRefused(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        host = house(Path(folder))
        speakers = turns(host)
        for number in range(count):
            outcome, text = send(host, dice, source, dice.choice(speakers))
            outcomes[outcome] += 1
            if outcome.isupper():
                print(f"request {number}: {outcome}: {text[:400]}")
        host.unload()
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())))
    return 1 if outcomes["LEAKED"] or outcomes["PASSED UNREAD"] or not outcomes["rewritten"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
