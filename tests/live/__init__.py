"""Scenarios that run on the real host; ``tests/live_integration.py`` is their runner."""

from __future__ import annotations

import importlib
import pkgutil
import traceback

from live.checks import Scenario, scenarios


def collect() -> tuple[dict[str, Scenario], dict[str, str]]:
    """Every scenario by name, and the traceback of every module that could not be imported."""
    broken: dict[str, str] = {}
    for module in pkgutil.iter_modules(__path__):
        try:
            importlib.import_module(f"{__name__}.{module.name}")
        except Exception:
            broken[module.name] = traceback.format_exc()
    return scenarios(), broken
