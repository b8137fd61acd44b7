"""manyhands: one Hermes bot, many people.

`register(ctx)` builds one of each part and hands their callbacks to the host. It opens no file:
the store opens at the first call that needs it.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from .commands import Commands
from .hooks import Hooks
from .identity import CODE_ALPHABET, Doorstep, Resolver, shown
from .policy import SETTING_NAMES, Settings, read_settings
from .store import Store, StoreError
from .tools import TOOLS, Tools
from .transport import Desk, HostTransport

log = logging.getLogger(__name__)

COMMAND_HINT = "[verb ...]"
AUDIT_CHARS = 2000


def register(ctx: Any) -> None:
    """Wire the plugin into a host. Without hooks there is no plugin; other gaps are logged."""
    if not callable(getattr(ctx, "register_hook", None)):
        log.error("manyhands: this host has no plugin hooks; nothing was registered")
        return
    settings = _LiveSettings(getattr(ctx, "get_config", None))
    db_path = settings().db_path
    store = Store(lambda: _db_path(db_path), clean=lambda text: shown(text, AUDIT_CHARS))
    getuid = getattr(os, "getuid", None)
    resolver = Resolver(uid=str(getuid()) if getuid else "local", settings=settings,
                        monotonic=time.monotonic)
    desk = Desk(store, resolver, settings=settings, draw=_draw,
                nonce=lambda: secrets.token_hex(16), inject=getattr(ctx, "inject_message", None))
    hooks = Hooks(store, resolver, desk, Doorstep(), settings=settings, clock=time.time)
    tools = Tools(store, resolver, settings=settings, clock=time.time)
    commands = Commands(store, resolver, desk, settings=settings, clock=time.time, draw=_draw)
    transport = HostTransport(store, resolver, desk, settings=settings, clock=time.time,
                              monotonic=time.monotonic)
    _register_hooks(ctx, hooks)
    _register_rest(ctx, tools, commands, transport)
    _at_unload(ctx, hooks, store)


def _register_hooks(ctx: Any, hooks: Hooks) -> None:
    for name in ("pre_llm_call", "pre_tool_call", "post_api_request", "pre_gateway_dispatch",
                 "post_gateway_admission", "subagent_start"):
        ctx.register_hook(name, getattr(hooks, name))
    register_middleware = _surface(ctx, "register_middleware")
    for kind in ("llm_request", "llm_execution"):
        if register_middleware is not None:
            register_middleware(kind, getattr(hooks, kind))


def _register_rest(ctx: Any, tools: Tools, commands: Commands, transport: HostTransport) -> None:
    register_tool = _surface(ctx, "register_tool")
    if register_tool is not None:
        for spec in TOOLS:
            register_tool(name=spec.name, toolset="manyhands", schema=spec.schema,
                          handler=tools.handler(spec.name), description=spec.description)
    register_command = _surface(ctx, "register_command")
    if register_command is not None:
        register_command("many", commands.many, description="manyhands: people, roles, approvals",
                         args_hint=COMMAND_HINT)
    register_transport = _surface(ctx, "register_approval_transport")
    if register_transport is not None:
        register_transport("manyhands", transport.present)


def _surface(ctx: Any, name: str) -> Callable[..., Any] | None:
    """A host's registration function; None, with one log line, on a host that lacks it."""
    found = getattr(ctx, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    log.warning("manyhands: this host has no %s; that part of the plugin is left out", name)
    return None


def _at_unload(ctx: Any, hooks: Hooks, store: Store) -> None:
    on_unload = getattr(ctx, "on_unload", None)
    if not callable(on_unload):
        return

    def unload() -> None:
        try:
            hooks.flush()
        except StoreError as error:
            log.error("manyhands: the last refusals' counts were not written: %s", error)
        finally:
            store.close()

    on_unload(unload)


class _LiveSettings:
    """The settings as they are now: a changed config.yaml is seen at the next look.

    Stands in for a `Settings`, one attribute a key, because each look at the host's configuration
    costs it a file's stat and most calls need two or three keys. A value is validated again only
    when what the operator wrote has changed.
    """

    def __init__(self, get_config: Callable[..., Any] | None) -> None:
        self._get_config = get_config
        self._known: dict[str, tuple[str | None, Settings]] = {}

    def __call__(self) -> Settings:
        return cast(Settings, self)

    def __getattr__(self, name: str) -> object:
        if name not in SETTING_NAMES:
            raise AttributeError(name)
        return getattr(self._one(name), name)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(p for name in SETTING_NAMES for p in self._one(name).problems)

    def _one(self, name: str) -> Settings:
        """Settings read from this key alone."""
        written = None if self._get_config is None else self._get_config(name, None)
        seen = None if written is None else repr(written)
        known = self._known.get(name)
        if known is None or known[0] != seen:
            read = read_settings({name: written})
            for problem in read.problems:
                log.warning("manyhands: setting %s", problem)
            known = self._known[name] = seen, read
        return known[1]


def _draw(length: int) -> str:
    return "".join(secrets.choice(CODE_ALPHABET) for _ in range(length))


def _db_path(configured: str) -> Path:
    """`db_path`, else MANYHANDS_DB, else the active profile's plugin-data folder (made 0700)."""
    chosen = configured or os.environ.get("MANYHANDS_DB", "")
    if chosen:
        return Path(chosen).expanduser()
    from plugins.plugin_storage import plugin_data_dir  # the host's documented surface, at need
    folder = Path(plugin_data_dir("manyhands"))
    folder.chmod(0o700)
    return folder / "manyhands.db"
