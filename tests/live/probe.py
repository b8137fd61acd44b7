"""A lab with the probe plugin in it, and the reader of what the probe wrote down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway_lab import GatewayLab, Home, wait_until

TESTS = Path(__file__).resolve().parent.parent
REPO = TESTS.parent
PROBE = TESTS / "probe_plugin"
PROBE_MEMORY = TESTS / "probe_memory"
OWN_TURN_AFTERWARDS = {"display": {"busy_input_mode": "queue"}}


@dataclass(frozen=True, slots=True)
class Event:
    """One payload: what it is, the session variables bound there, and the thread."""

    kind: str
    payload: dict[str, Any]
    bound: dict[str, str]
    thread: str


class Journal:
    """The probe's journal, read on from where the last look ended."""

    def __init__(self, home: Home) -> None:
        self._path = home.path / "probe.jsonl"
        self._read = 0

    def new(self, *kinds: str) -> list[Event]:
        """The events since the last look, of these kinds if any is named; the rest is dropped."""
        events = self._tail()
        self._read += len(events)
        return [event for event in events if not kinds or event.kind in kinds]

    def one(self, kind: str) -> Event:
        """The only new event of this kind; LookupError when there is none or more than one."""
        events = self.new(kind)
        if len(events) != 1:
            raise LookupError(f"{len(events)} events of kind {kind}, not one")
        return events[0]

    def wait_for(self, kind: str, count: int = 1, timeout_s: float = 30.0) -> bool:
        """Whether so many events of this kind came since the last look; it consumes nothing."""
        return wait_until(
            lambda: sum(e.kind == kind for e in self._tail()) >= count, timeout_s
        )

    def _tail(self) -> list[Event]:
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that is being written waits
        return [Event(**json.loads(line)) for line in whole.splitlines()[self._read :]]


def probe_lab(**options: Any) -> GatewayLab:
    """A lab with the probe plugin, told that the owner is 111."""
    return GatewayLab(PROBE, {"owner": "111"}, **options)


def tool(name: str, args: dict[str, Any] | None = None) -> str:
    """The directive that makes the model call a tool."""
    return f"TOOL {name} {json.dumps(args or {})}"
