"""The host's interactive command line on a pseudo-terminal (Linux and macOS)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from gateway_lab import Home, pause, wait_until

KEY_PAUSE_S = 0.02  # keys that arrive together are taken for a paste
ENTER_PAUSE_S = 0.5  # ... and an Enter that follows at once for a part of it
CURSOR_QUESTION, CURSOR_ANSWER = b"\x1b[6n", b"\x1b[20;1R"


class Terminal:
    """``hermes chat`` in a home; ``output`` is all that it has drawn so far."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._drawn = b""

    @property
    def output(self) -> str:
        return self._drawn.decode("utf-8", errors="replace")

    def shows(self, text: str, timeout_s: float = 30.0) -> bool:
        """Whether this text was drawn, now or within the time."""
        return wait_until(lambda: text in self.output, timeout_s)

    def enter(self, line: str) -> None:
        """Type a line key by key and press Enter."""
        for key in line:
            os.write(self._master, key.encode())
            pause(KEY_PAUSE_S)
        pause(ENTER_PAUSE_S)
        os.write(self._master, b"\r")

    def __enter__(self) -> Terminal:
        import pty
        import termios

        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 120))
        environment = self._home.environment({"TERM": "xterm-256color"})
        environment.pop("CI", None)
        command = (str(Path(sys.executable).parent / "hermes"), "chat")
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=self._home.work,
            env=environment, start_new_session=True)
        os.close(slave)
        threading.Thread(target=self._read, name="terminal", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(10)

    def _read(self) -> None:
        try:
            while chunk := os.read(self._master, 65536):
                self._drawn += chunk
                if CURSOR_QUESTION in chunk:
                    os.write(self._master, CURSOR_ANSWER)
        except OSError:  # the other end is closed
            return
