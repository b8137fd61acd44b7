"""What the self-tests share: loading the plugin, a clock, a real store, a stand-in host.

The stand-in host behaves as the real one does, in the two contracts that a plugin can meet:
0.22 (ignores a block from `pre_llm_call`, empty sender on the terminal, no `source` for commands)
and 0.23 (honours the block, `uid:<uid>`, `source=` for handlers that declare it, a fresh task id
for each turn). The live tests hold the real host to the same facts.
"""

from __future__ import annotations

import contextvars
import importlib
import importlib.util
import inspect
import itertools
import os
import shutil
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOON = 1_900_000_000.0 - 1_900_000_000.0 % 86400 + 43200  # some day's noon, UTC seconds
UID = f"uid:{os.getuid()}" if hasattr(os, "getuid") else "uid:local"


def load_plugin(root: Path = ROOT, name: str = "manyhands") -> ModuleType:
    """The plugin as a package, the way the host imports a directory plugin."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, root / "__init__.py", submodule_search_locations=[str(root)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no plugin at {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def plugin_module(name: str) -> ModuleType:
    load_plugin()
    return importlib.import_module(f"manyhands.{name}")


class FakeClock:
    """UTC seconds that move only when told to."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def counting_draw() -> Callable[[int], str]:
    """Codes in a fixed order, each one different: AAAA, AAAC, AAAD, …"""
    alphabet = plugin_module("identity").CODE_ALPHABET
    numbers = itertools.count()

    def draw(length: int) -> str:
        number, code = next(numbers), ""
        for _ in range(length):
            number, digit = divmod(number, len(alphabet))
            code = alphabet[digit] + code
        return code
    return draw


class FolderCase(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="manyhands-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.clock = FakeClock()


class StoreCase(FolderCase):
    """A test with a real store in a real file."""

    def setUp(self) -> None:
        super().setUp()
        store = plugin_module("store")
        identity = plugin_module("identity")
        self.path = self.folder / "manyhands.db"
        self.store = store.Store(lambda: self.path, clean=identity.shown)
        self.addCleanup(self.store.close)

    def add(self, person: str, role: str, name: str = "") -> str:
        """Put `platform:sender` on the roster."""
        identity = plugin_module("identity")
        platform, _, sender_id = person.partition(":")
        with self.store.transaction() as tx:
            tx.add_person(person_id=person, platform=platform, sender_id=sender_id,
                          name=name or sender_id, name_key=identity.name_key(name or sender_id),
                          role=role, joined_by="test", now=self.clock())
        return person


_VARIABLES: dict[str, contextvars.ContextVar[str]] = {
    name: contextvars.ContextVar(f"HERMES_SESSION_{name}") for name in (
        "PLATFORM", "USER_ID", "USER_NAME", "CHAT_ID", "CHAT_TYPE", "THREAD_ID", "KEY")}


class StandInHost:
    """A host of one contract: hooks on fresh threads, a scripted model, chats as lists of texts.

    `config` is the plugin's settings and is read live. `injected` keeps what was injected;
    `deliver()` runs those texts as turns of the chats they were addressed to.
    """

    def __init__(self, config: dict[str, Any] | None = None, *, contract: str = "0.22",
                 injects: bool = True, root: Path = ROOT, package: str = "manyhands") -> None:
        self.config = dict(config or {})
        self.contract = contract
        self.injects = injects
        self.hooks: dict[str, Callable[..., Any]] = {}
        self.middleware: dict[str, Callable[..., Any]] = {}
        self.tools: dict[str, SimpleNamespace] = {}
        self.commands: dict[str, Callable[..., Any]] = {}
        self.transports: dict[str, Callable[..., Any]] = {}
        self.injected: list[dict[str, Any]] = []
        self.sent: dict[str, list[str]] = {}
        self.requests: list[dict[str, Any]] = []
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.histories: dict[str, list[dict[str, Any]]] = {}
        self.system = "You are a test bot."
        self._unload: list[Callable[[], None]] = []
        self._numbers = itertools.count(1)
        load_plugin(root, package).register(self)

    # -- ctx

    def register_hook(self, name: str, callback: Callable[..., Any]) -> None:
        self.hooks[name] = callback

    def register_middleware(self, kind: str, callback: Callable[..., Any]) -> None:
        self.middleware[kind] = callback

    def register_tool(self, *, name: str, handler: Callable[..., Any], **spec: Any) -> None:
        self.tools[name] = SimpleNamespace(handler=handler, **spec)

    def register_command(self, name: str, handler: Callable[..., Any], **_spec: Any) -> None:
        self.commands[name] = handler

    def register_approval_transport(self, name: str, present: Callable[..., Any]) -> None:
        self.transports[name] = present

    def get_config(self, key: str, default: Any = None) -> Any:
        return self.config.get(key, default)

    def inject_message(self, content: str, role: str = "user", *, session_key: str | None = None,
                       origin: dict[str, Any] | None = None) -> bool:
        if not self.injects:
            return False
        self.injected.append({"content": content, "origin": dict(origin or {})})
        return True

    def on_unload(self, callback: Callable[[], None]) -> None:
        self._unload.append(callback)

    def unload(self) -> None:
        for callback in self._unload:
            callback()

    # -- calling the plugin as the host does

    def call(self, callback: Callable[..., Any], **keywords: Any) -> Any:
        """On a fresh thread with a copy of this context, as 0.22 runs bounded hooks."""
        box: list[Any] = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: box.append(
            context.run(lambda: callback(**keywords))))
        thread.start()
        thread.join()
        return box[0] if box else None

    @contextmanager
    def bound(self, **values: str) -> Iterator[None]:
        tokens = [(_VARIABLES[key], _VARIABLES[key].set(value)) for key, value in values.items()]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)

    def _place(self, user: str, name: str, chat: str, platform: str) -> dict[str, str]:
        kind, _, chat_id = chat.partition(":")
        return {"PLATFORM": platform, "USER_ID": user, "USER_NAME": name,
                "CHAT_ID": chat_id or user, "CHAT_TYPE": kind, "THREAD_ID": "",
                "KEY": f"agent:main:{platform}:{chat}"}

    def command(self, user: str, text: str, *, name: str = "", chat: str = "dm",
                platform: str = "telegram", bind: dict[str, str] | None = None) -> str:
        """`/many text` typed in a chat; the answer."""
        place = self._place(user, name, chat, platform) if bind is None else bind
        handler = self.commands["many"]
        keywords: dict[str, Any] = {}
        if self.contract == "0.23" and "source" in inspect.signature(handler).parameters:
            keywords["source"] = SimpleNamespace(
                platform=SimpleNamespace(value=place["PLATFORM"]), user_id=place["USER_ID"],
                user_name=place["USER_NAME"], chat_id=place["CHAT_ID"],
                chat_type=place["CHAT_TYPE"], thread_id="")
        with self.bound(**place):
            return str(contextvars.copy_context().run(lambda: handler(text, **keywords)) or "")

    def dispatch(self, user: str, text: str, *, name: str = "", chat: str = "dm",
                 platform: str = "telegram") -> dict[str, Any] | None:
        """What the gate before the host's own command dispatch says to a message."""
        place = self._place(user, name, chat, platform)
        source = SimpleNamespace(
            platform=SimpleNamespace(value=platform), user_id=user or None, user_name=name,
            chat_id=place["CHAT_ID"], chat_type=place["CHAT_TYPE"], thread_id=None)
        def get_command() -> str | None:
            word = text.strip().split(maxsplit=1)[0] if text.strip().startswith("/") else ""
            return None if not word or "/" in word[1:] else word[1:].lower().split("@", 1)[0]
        event = SimpleNamespace(text=text, source=source, get_command=get_command)
        found: dict[str, Any] | None = contextvars.Context().run(
            lambda: self.hooks["pre_gateway_dispatch"](event=event, gateway=None,
                                                       session_store=None))
        return found

    def terminal_command(self, text: str) -> str:
        """`/many text` typed at the operator's own terminal."""
        return str(contextvars.Context().run(lambda: self.commands["many"](text)) or "")

    def say(self, user: str, text: str, *, name: str = "", chat: str = "dm",
            platform: str = "telegram", tools: list[tuple[str, dict[str, Any]]] | None = None,
            shared: bool = False, door: bool = True, tokens: int = 10) -> SimpleNamespace:
        """One message of one person, through the door and a whole turn.

        `tools` are the calls that the scripted model makes, one after the other. The result has
        `reply`, `results` (one text per call), `model_calls`, `turn_id`, `session_id`.
        """
        place = self._place(user, name, chat, platform)
        seen = SimpleNamespace(reply=None, results=[], model_calls=0, turn_id="", session_id="")
        with self.bound(**place):
            if door and self._stopped_at_the_door(place, text, seen):
                return seen
            session = f"s-{platform}-{chat}" + ("" if shared or chat == "dm" else f"-{user}")
            if chat == "dm":
                session += f"-{user}"
            self.run_turn(seen, session=session, text=text, platform=platform, sender=user,
                          tools=tools or [], tokens=tokens,
                          prefix=f"[{name}] " if shared and name else "")
        self.sent.setdefault(place["CHAT_ID"], []).append(seen.reply or "")
        return seen

    def _stopped_at_the_door(self, place: dict[str, str], text: str,
                             seen: SimpleNamespace) -> bool:
        hook = self.hooks.get("post_gateway_admission")
        if hook is None:
            return False
        source = {"platform": place["PLATFORM"], "user_id": place["USER_ID"],
                  "user_name": place["USER_NAME"], "chat_id": place["CHAT_ID"],
                  "chat_type": place["CHAT_TYPE"], "thread_id": ""}
        answer = contextvars.Context().run(lambda: self.call(
            hook, session_key=place["KEY"], platform=place["PLATFORM"], source=source,
            message_id="m1", text=text))
        if not isinstance(answer, dict) or answer.get("action") != "handled":
            return False
        seen.reply = answer.get("reply")
        if seen.reply:
            self.sent.setdefault(place["CHAT_ID"], []).append(seen.reply)
        return True

    def run_turn(self, seen: SimpleNamespace, *, session: str, text: str, platform: str,
                 sender: str, tools: list[tuple[str, dict[str, Any]]], tokens: int = 10,
                 prefix: str = "", parent_session: str = "") -> None:
        """pre_llm_call, requests, tool calls and usage of one turn, in the host's order."""
        number = next(self._numbers)
        task = session if self.contract == "0.22" else f"task-{number}"
        turn = f"{session}:{task}:{number:08x}"
        ids = {"session_id": session, "task_id": task, "turn_id": turn}
        seen.turn_id, seen.session_id = turn, session
        history = self.histories.setdefault(session, [])
        result = self.call(self.hooks["pre_llm_call"], **ids, user_message=prefix + text,
                           conversation_history=list(history), is_first_turn=not history,
                           model="m", platform=platform, sender_id=sender,
                           parent_session_id=parent_session)
        content = prefix + text
        if isinstance(result, dict) and result.get("context"):
            content += "\n\n" + result["context"]
        history.append({"role": "user", "content": content})
        blocked = isinstance(result, dict) and result.get("action") == "block"
        if blocked and self.contract == "0.23":
            seen.reply = result["message"]
            history.append({"role": "assistant", "content": seen.reply})
            return
        for name, args in tools:
            if self._request(ids, history, seen, platform, tokens):
                return
            seen.results.append(self.tool_call(name, args, **ids))
            history.append({"role": "tool", "content": seen.results[-1]})
        if not self._request(ids, history, seen, platform, tokens):
            seen.reply = f"ECHO: {text}"
            history.append({"role": "assistant", "content": seen.reply})

    def _request(self, ids: dict[str, str], history: list[dict[str, Any]],
                 seen: SimpleNamespace, platform: str, tokens: int) -> bool:
        """One provider call; True when the plugin answered it instead and the turn is over."""
        request = {"model": "m", "messages": [{"role": "system", "content": self.system},
                                              *(dict(m) for m in history)],
                   "tools": [{"type": "function", "function": {"name": n}} for n in self.tools]}
        if "llm_request" in self.middleware:
            changed = self.middleware["llm_request"](
                request=request, original_request=request, platform=platform,
                api_mode="chat_completions", **ids)
            if isinstance(changed, dict) and isinstance(changed.get("request"), dict):
                request = changed["request"]
        provider_called: list[bool] = []
        def next_call(payload: Any = None) -> SimpleNamespace:
            provider_called.append(True)
            self.requests.append(payload or request)
            seen.model_calls += 1
            return SimpleNamespace(choices=[])
        answered = self.middleware["llm_execution"](
            request=request, next_call=next_call, api_mode="chat_completions", **ids) \
            if "llm_execution" in self.middleware else next_call(request)
        usage = {"total_tokens": tokens if provider_called else 0}
        self.call(self.hooks["post_api_request"], usage=usage, platform=platform, **ids)
        if provider_called:
            return False
        seen.reply = answered.choices[0].message.content
        history.append({"role": "assistant", "content": seen.reply})
        return True

    def tool_call(self, name: str, args: dict[str, Any], *, turn_id: str = "",
                  session_id: str = "", task_id: str = "", call_id: str = "c1") -> str:
        """`pre_tool_call`, then the tool; its result, or the block's message as the host shows it.

        A block without words lets the tool run, as on the real host.
        """
        answer = self.call(self.hooks["pre_tool_call"], tool_name=name, args=args,
                           turn_id=turn_id, session_id=session_id, task_id=task_id,
                           tool_call_id=call_id if turn_id else "", api_request_id="",
                           middleware_trace=[], telemetry_schema_version="x")
        if isinstance(answer, dict) and answer.get("action") == "block" and answer.get("message"):
            return str(answer["message"])
        self.ran.append((name, args))
        if name in self.tools:
            return str(self.tools[name].handler(args, task_id=task_id, session_id=session_id,
                                                user_task=None))
        return f"ran {name}"

    def deliver(self, *to: str) -> list[str]:
        """Run the injected texts as turns of the chats they were addressed to; the replies.

        With user ids, only theirs; the others stay in `injected`.
        """
        waiting = [item for item in self.injected if not to or item["origin"]["user_id"] in to]
        self.injected = [item for item in self.injected if item not in waiting]
        return [self._deliver_one(item["content"], item["origin"]).reply for item in waiting]

    def _deliver_one(self, text: str, origin: dict[str, Any],
                     tools: list[tuple[str, dict[str, Any]]] | None = None) -> SimpleNamespace:
        chat = "dm" if origin["chat_type"] == "dm" else f"group:{origin['chat_id']}"
        return self.say(origin["user_id"], text, chat=chat, platform=origin["platform"],
                        door=False, shared=chat != "dm", tools=tools)


def probe(argv: list[str], attacks: Callable[[Path, Path, str], list[tuple[str, bool]]]) -> int:
    """Run (what was tried, got through) attacks under both contracts, say what they found.

    `attacks(root, folder, contract)` works on the checkout at `root`, which is argv's first word
    or this tree. The exit code: 1 when any got through.
    """
    root = Path(argv[0]).resolve() if argv else ROOT
    through = 0
    for contract in ("0.22", "0.23"):
        with tempfile.TemporaryDirectory() as folder:
            for said, got_through in attacks(root, Path(folder), contract):
                through += got_through
                print(f"{'GOT THROUGH' if got_through else 'held':12} {contract}  {said}")
    print(f"{through} of the attacks on {root} got through")
    return 1 if through else 0
