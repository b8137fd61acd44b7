"""The real Hermes gateway in this process and a throwaway home, between fake chat and fake model.

    with GatewayLab(plugin_dir, {"owner": "111"}) as lab:
        lab.say("222", "hi", "Minh")                        # a DM; -> ["ECHO: hi"]
        lab.say("222", "hi", "Minh", "group:G1")            # the replies of that chat
        lab.post("222", "HOLD gate SAY done", "Minh")       # does not wait for the turn
        lab.wait_idle()
        lab.sent("G1"), lab.turn_requests, lab.home.path

One process is one lab: the host keeps process-wide state that is bound to its home. A DM's chat id
is the sender's id. Only loopback can be reached. Host modules are imported inside functions only,
so that a Python without a host can read this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fake_model import FakeModel, Request

T = TypeVar("T")
Settings = Mapping[str, Any]

# What a throwaway host must not inherit from the machine that runs the tests.
PRIVATE_ENV = (
    "OPENAI", "ANTHROPIC", "OPENROUTER", "GEMINI", "GOOGLE", "AWS_", "AZURE", "NOUS", "HERMES_",
    "TELEGRAM_", "DISCORD_", "SLACK_", "GATEWAY_", "TERMINAL_", "XAI", "GROQ", "MISTRAL",
    "DEEPSEEK",
)

# Also written as the home's sitecustomize.py: child processes are held to it.
GUARD = '''\
import socket as _socket

_LOOPBACK = ("127.", "::1", "localhost")
_connect, _getaddrinfo = _socket.socket.connect, _socket.getaddrinfo


def _guarded_connect(self, address):
    internet = self.family in (_socket.AF_INET, _socket.AF_INET6)
    if internet and not str(address[0]).startswith(_LOOPBACK):
        raise ConnectionRefusedError("lab: only loopback can be reached: %r" % (address,))
    return _connect(self, address)


def _guarded_getaddrinfo(host, *args, **kwargs):
    name = host.decode() if isinstance(host, bytes) else host
    if name is not None and not str(name).startswith(_LOOPBACK):
        raise _socket.gaierror(_socket.EAI_NONAME, "lab: only loopback has names")
    return _getaddrinfo(host, *args, **kwargs)


_socket.socket.connect, _socket.getaddrinfo = _guarded_connect, _guarded_getaddrinfo
'''

WIRE_MANIFEST = "name: labwire\nversion: 0.0.1\ndescription: a fake chat\nkind: platform\n"
WIRE_MODULE = '''\
import gateway_lab


def register(ctx):
    for name in gateway_lab.PLATFORMS:
        ctx.register_platform(
            name=name, label=name.title(), adapter_factory=gateway_lab.make_adapter,
            check_fn=lambda: True, validate_config=lambda cfg: True, is_connected=lambda cfg: True,
            allowed_users_env=name.upper() + "_ALLOWED_USERS",
            allow_all_env=name.upper() + "_ALLOW_ALL_USERS")
'''

# The chat platforms that the lab's own plugin registers; set by the one lab of this process.
PLATFORMS: list[str] = ["telegram"]


def pause(seconds: float) -> None:
    """Let other threads run for a moment."""
    threading.Event().wait(seconds)


def wait_until(claim: Callable[[], T], timeout_s: float = 30.0) -> T:
    """The first truthy answer of ``claim``, or its last answer when the time is up."""
    deadline = time.monotonic() + timeout_s
    answer = claim()
    while not answer and time.monotonic() < deadline:
        pause(0.02)
        answer = claim()
    return answer


def deep_merge(base: dict[str, Any], over: Settings) -> dict[str, Any]:
    """Put ``over`` into ``base``, dictionary by dictionary, and return ``base``."""
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            deep_merge(base[key], value)
        else:
            base[key] = value
    return base


def guard_network() -> None:
    """Refuse every connection of this process that leaves loopback, at once."""
    if not getattr(socket, "_lab_guarded", False):
        exec(compile(GUARD, "<network guard>", "exec"), {})  # noqa: S102
        socket._lab_guarded = True  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that the host delivered to a chat."""

    chat: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


def make_adapter(config: Any) -> Any:
    """The fake chat's adapter: the factory that the lab's platform plugin hands to the host."""
    from gateway.config import Platform
    from gateway.platforms.base import BasePlatformAdapter, SendResult

    class LabAdapter(BasePlatformAdapter):  # type: ignore[misc]
        MAX_MESSAGE_LENGTH = 100_000

        def __init__(self, cfg: Any, platform: Any) -> None:
            super().__init__(cfg, platform)
            self.outbox: list[Sent] = []

        async def connect(self, *, is_reconnect: bool = False) -> bool:
            self._mark_connected()
            return True

        async def disconnect(self) -> None:
            self._mark_disconnected()

        async def send(
            self, chat_id: Any, content: str, reply_to: Any = None, metadata: Any = None
        ) -> Any:
            self.outbox.append(Sent(str(chat_id), content, dict(metadata or {})))
            return SendResult(success=True, message_id=str(len(self.outbox)))

        async def send_typing(self, chat_id: Any, metadata: Any = None) -> None:
            return None

        async def get_chat_info(self, chat_id: Any) -> dict[str, str]:
            return {"name": str(chat_id), "type": "dm"}

    extra = getattr(config, "extra", None) or {}
    return LabAdapter(config, Platform(extra.get("lab_name", PLATFORMS[0])))


class Home:
    """A throwaway HERMES_HOME: its config.yaml (JSON is YAML), its plugins, its command line."""

    def __init__(self, base_url: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="hermes-lab-"))
        self.path = self.root / "home"
        self.work = self.root / "work"
        site = self.root / "site"
        for folder in (self.path / "plugins", self.path / "memories", self.work, site):
            folder.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(GUARD, encoding="utf-8")
        self.config: dict[str, Any] = {
            "model": {
                "default": "fake-model", "provider": "custom", "base_url": base_url,
                "api_key": "lab-key", "context_length": 200000,
            },
            "agent": {"max_turns": 12},
            "plugins": {"enabled": [], "entries": {}},
            "memory": {"memory_enabled": True, "user_profile_enabled": True},
            "compression": {"enabled": False},
            "terminal": {"backend": "local", "cwd": str(self.work)},
            "approvals": {"mode": "manual"},
            "tools": {"tool_search": {"enabled": "off"}},
            # the first message ever would otherwise carry an onboarding note
            "onboarding": {"profile_build": "off", "seen": {"profile_build_offered": True}},
            # an interactive terminal would otherwise ask about metrics before the first prompt
            "telemetry": {"shared_metrics": {"enabled": False, "send": False, "offer_version": 2}},
        }

    def install(self, source: Path) -> str:
        """Copy a plugin into the home without enabling it; returns the name in its manifest."""
        manifest = (source / "plugin.yaml").read_text(encoding="utf-8")
        lines = (line.partition(":") for line in manifest.splitlines())
        name = next(value.strip().strip("'\"") for key, _, value in lines if key == "name")
        skipped = shutil.ignore_patterns("__pycache__", ".*", "tests")
        shutil.copytree(source, self.path / "plugins" / name, ignore=skipped)
        return name

    def add_plugin(
        self, source: Path, settings: Settings | None = None, *, entry: Settings | None = None
    ) -> str:
        """Install and enable a plugin; ``entry`` is what stands beside its settings."""
        name = self.install(source)
        self.config["plugins"]["enabled"].append(name)
        self.config["plugins"]["entries"][name] = {
            "settings": dict(settings or {}), "allow_gateway_injection": True, **(entry or {}),
        }
        return name

    def write(self) -> None:
        """Write config.yaml; a running host sees it at once."""
        text = json.dumps(self.config, indent=1)
        (self.path / "config.yaml").write_text(text, encoding="utf-8")

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a host in this home: nothing private of the machine's own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(PRIVATE_ENV)}
        return {
            **kept,
            "HERMES_HOME": str(self.path), "HOME": str(self.root), "TERMINAL_CWD": str(self.work),
            "PYTHONPATH": str(self.root / "site"), "PYTHONDONTWRITEBYTECODE": "1",
            "HTTPS_PROXY": "", "HTTP_PROXY": "", "NO_PROXY": "*", "NO_COLOR": "1", "CI": "1",
            "HERMES_SKIP_UPDATE_CHECK": "1", **(extra or {}),
        }

    def run(
        self, *argv: str, timeout_s: float = 120, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this home and environment."""
        return subprocess.run(
            argv, env=self.environment(), cwd=self.work, timeout=timeout_s, input=stdin,
            capture_output=True, text=True, check=False,
        )

    def hermes(
        self, *argv: str, timeout_s: float = 120, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run the real ``hermes`` command line against this home."""
        executable = str(Path(sys.executable).parent / "hermes")
        return self.run(executable, *argv, timeout_s=timeout_s, stdin=stdin)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class GatewayLab:
    """A booted gateway. ``config`` is merged into config.yaml; ``env`` is added to the environment.

    ``more_plugins`` are installed and enabled beside the plugin under test, ``installed`` ones are
    only copied; ``files`` are written into the home by relative path. Unlike a fresh installation:
    every stranger is admitted (``allow_all``), approvals are ``manual``, tools are not deferred,
    compression is off, and the home channel is 111.
    """

    def __init__(
        self,
        plugin_dir: Path | None = None,
        settings: Settings | None = None,
        *,
        entry: Settings | None = None,
        more_plugins: Sequence[Path] = (),
        installed: Sequence[Path] = (),
        platforms: Sequence[str] = ("telegram",),
        platform_extra: Settings | None = None,
        config: Settings | None = None,
        env: Mapping[str, str] | None = None,
        allow_all: bool = True,
        group_sessions_per_user: bool = True,
        files: Mapping[str, str] | None = None,
        model: FakeModel | None = None,
    ) -> None:
        self.model = model or FakeModel()
        self.home = Home(self.model.base_url)
        PLATFORMS[:] = platforms
        self.platform = platforms[0]
        self._add_wire()
        self.plugin = self.home.add_plugin(plugin_dir, settings, entry=entry) if plugin_dir else ""
        for source in more_plugins:
            self.home.add_plugin(source)
        for source in installed:
            self.home.install(source)
        self.home.config["group_sessions_per_user"] = group_sessions_per_user
        self.home.config["platforms"] = {
            name: {"enabled": True, "token": "lab" * 12,
                   "extra": {"lab_name": name, **(platform_extra or {})}}
            for name in platforms
        }
        deep_merge(self.home.config, config or {})
        self.home.write()
        for name, text in (files or {}).items():  # e.g. memories/MEMORY.md, SOUL.md
            (self.home.path / name).write_text(text, encoding="utf-8")
        self._env = {
            **{name.upper() + "_HOME_CHANNEL": "111" for name in platforms},
            "HERMES_EXEC_ASK": "1",
            **({"GATEWAY_ALLOW_ALL_USERS": "true"} if allow_all else {}),
            **(env or {}),
        }
        self.runner: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="lab-gateway", daemon=True)
        self._booted = threading.Event()
        self._boot_error: BaseException | None = None
        self._messages = 0

    def _add_wire(self) -> None:
        wire = self.home.root / "labwire"
        wire.mkdir()
        (wire / "plugin.yaml").write_text(WIRE_MANIFEST, encoding="utf-8")
        (wire / "__init__.py").write_text(WIRE_MODULE, encoding="utf-8")
        self.home.add_plugin(wire)

    # -- its life ------------------------------------------------------------------------------

    def __enter__(self) -> GatewayLab:
        self.model.start()
        environment = self.home.environment(self._env)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(self.home.work)
        guard_network()
        self._thread.start()
        if not self._booted.wait(90):
            raise TimeoutError("the gateway did not start")
        if self._boot_error:
            raise self._boot_error
        if not self.adapters:
            raise RuntimeError("the fake chat did not connect\n" + self.log_text()[-2000:])
        wait_until(lambda: not getattr(self.runner, "_startup_restore_in_progress", False))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(Exception):  # a host that stops badly is not what is tested
            asyncio.run_coroutine_threadsafe(self.runner.stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self.model.stop()
        os.chdir(Path(os.sep))
        self.home.remove()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._boot())
        except BaseException as error:  # raised again in the thread that entered the lab
            self._boot_error = error
        self._booted.set()
        if not self._boot_error:
            self._loop.run_forever()

    async def _boot(self) -> None:
        import gateway.run as host

        with contextlib.suppress(Exception):  # without its log files the host runs as well
            host._start_gateway_configure_logging(None)
        # The Group Chat worker belongs to the dashboard and would pull in its server.
        for name in ("_ensure_hosted_room_worker", "_hosted_room_worker_watcher",
                     "_stop_hosted_room_worker"):
            setattr(host.GatewayRunner, name, _nothing)
        self.runner = host.GatewayRunner()
        await self.runner.start()

    # -- what is there -------------------------------------------------------------------------

    @property
    def adapters(self) -> dict[str, Any]:
        found = getattr(self.runner, "adapters", None) or {}
        return {platform.value: adapter for platform, adapter in found.items()}

    @property
    def outbox(self) -> list[Sent]:
        """Everything that the host delivered on the first platform."""
        outbox: list[Sent] = self.adapters[self.platform].outbox
        return outbox

    @property
    def turn_requests(self) -> list[Request]:
        """The model requests of turns; auxiliary ones (a chat's title) offer no tools."""
        return [request for request in self.model.requests if request.get("tools")]

    def sent(self, chat: str, platform: str = "") -> list[str]:
        """The texts that one chat has received so far."""
        outbox = self.adapters[platform or self.platform].outbox
        return [message.text for message in outbox if message.chat == chat]

    def log_text(self, name: str = "agent.log") -> str:
        path = self.home.path / "logs" / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # -- talking -------------------------------------------------------------------------------

    def post(
        self, user_id: str, text: str, user_name: str = "", chat: str = "dm", *,
        platform: str = "", thread_id: str | None = None,
    ) -> str:
        """Deliver one inbound message and return its chat id, without waiting for any turn.

        ``chat`` is ``dm``, or a chat type and an id: ``group:G1``.
        """
        from gateway.platforms.event import MessageEvent, MessageType

        adapter = self.adapters[platform or self.platform]
        kind, _, chat_id = chat.partition(":")
        self._messages += 1
        source = adapter.build_source(
            chat_id=chat_id or user_id, chat_name=chat_id or user_name, chat_type=kind,
            user_id=user_id, user_name=user_name, thread_id=thread_id,
            message_id=f"m{self._messages}",
        )
        event = MessageEvent(
            text=text, message_type=MessageType.TEXT, source=source,
            message_id=source.message_id, user_id=user_id, user_name=user_name,
        )
        asyncio.run_coroutine_threadsafe(adapter.handle_message(event), self._loop).result(30)
        return chat_id or user_id

    def say(
        self, user_id: str, text: str, user_name: str = "", chat: str = "dm", *,
        platform: str = "", thread_id: str | None = None, timeout_s: float = 60.0,
    ) -> list[str]:
        """Deliver one message, wait until the gateway is idle, return what its chat received."""
        outbox = self.adapters[platform or self.platform].outbox
        before = len(outbox)
        chat_id = self.post(
            user_id, text, user_name, chat, platform=platform, thread_id=thread_id
        )
        self.wait_idle(timeout_s)
        return [message.text for message in outbox[before:] if message.chat == chat_id]

    def has_queued(self) -> bool:
        """Whether a message waits behind a running turn."""
        return any(adapter._pending_messages for adapter in self.adapters.values())

    def is_busy(self) -> bool:
        """Whether a turn runs or a message waits anywhere in the gateway."""
        if self.has_queued() or any(a._active_sessions for a in self.adapters.values()):
            return True
        sessions = list(self.runner._sessions_map().values())
        return any(session.turn.agent is not None for session in sessions)

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Return once the gateway has been idle for a tenth of a second."""
        deadline = time.monotonic() + timeout_s
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 0.1:
            if time.monotonic() > deadline:
                raise TimeoutError("the gateway is still busy")
            pause(0.01)
            if self.is_busy():
                quiet_since = time.monotonic()

    def warm_up(self) -> None:
        """One message of somebody else, so that nothing of a first contact lands in a test."""
        self.say("900", "warm up", "Warm")
        self.model.requests.clear()
        self.outbox.clear()


async def _nothing(self: Any, *args: Any, **kwargs: Any) -> bool:
    return True
