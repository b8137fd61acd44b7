"""What a scenario is and how it says what it saw.

    @scenario
    def a_guest_is_refused(check: Check) -> None:
        '''What this scenario shows, in one line for --list.'''
        with GatewayLab(...) as lab:
            check("the reply says so", "may not" in lab.say("222", "hi")[0], seen=lab.sent("222"))
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHECK_MARK = "@check "  # starts the lines that the runner reads
SEEN_LIMIT = 600

Scenario = Callable[["Check"], None]
_SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Collect a scenario under its function's name."""
    if function.__name__ in _SCENARIOS:
        raise ValueError(f"two scenarios are named {function.__name__}")
    _SCENARIOS[function.__name__] = function
    return function


def scenarios() -> dict[str, Scenario]:
    """The scenarios of all modules imported so far."""
    return dict(_SCENARIOS)


@dataclass(frozen=True, slots=True)
class Result:
    """One check: the sentence that should be true, whether it was, and what was seen."""

    sentence: str
    passed: bool
    seen: str = ""


class Check:
    """Prints each check as one line for the runner; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, sentence: str, condition: object, seen: object = None) -> bool:
        """Record that ``sentence`` holds exactly when ``condition`` is truthy."""
        shown = "" if condition or seen is None else _shown(seen)
        line = json.dumps({"sentence": sentence, "passed": bool(condition), "seen": shown})
        with self._lock:
            print(CHECK_MARK + line, file=sys.__stdout__, flush=True)
        return bool(condition)

    def equal(self, sentence: str, got: object, wanted: object) -> bool:
        """Record that ``sentence`` holds exactly when both values are equal."""
        return self(sentence, got == wanted, f"got {_shown(got)}, wanted {_shown(wanted)}")


def parse(line: str) -> Result | None:
    """The check that a line of a scenario's output records; None for any other line."""
    if not line.startswith(CHECK_MARK):
        return None
    fields: dict[str, Any] = json.loads(line.removeprefix(CHECK_MARK))
    return Result(fields["sentence"], fields["passed"], fields["seen"])


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SEEN_LIMIT else text[:SEEN_LIMIT] + f"... ({len(text)} characters)"
