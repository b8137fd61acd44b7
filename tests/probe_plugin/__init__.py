"""Appends each payload that the host hands over to ``$HERMES_HOME/probe.jsonl``.

How it answers depends on words in what it is handed, so that one booted host serves many checks:

    PROBE-BLOCK              in the user's text: pre_llm_call returns a block
    PROBE-REQUEST-RAISES     ... llm_request spoils the request that it was handed, then raises
    PROBE-CANNED             ... llm_execution answers without calling the provider
    PROBE-HANDLED            ... post_gateway_admission handles the message with a reply
    PROBE-SILENT             ... and without one
    {"probe": "raise"}       in a tool's arguments: pre_tool_call raises; also "block",
                             "block-empty" and "odd" (it returns a list)
    {"wait": "name"}         in probe_tool's arguments: it returns when $HERMES_HOME/name exists
    probe-once, probe-raise  in a command to approve: what the approval transport does, else deny

``/probe config KEY`` answers with a setting, ``/probe inject {...}`` with what
``ctx.inject_message(**{...})`` returned, any other ``/probe TEXT`` with TEXT.
"""

from __future__ import annotations

import contextvars
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

OBSERVED = ("post_tool_call", "post_api_request", "subagent_start", "pre_approval_request",
            "post_approval_response")
WAIT_LIMIT_S = 60.0


class Probe:
    def __init__(self, ctx: Any, home: Path) -> None:
        self.ctx = ctx
        self.home = home
        self._lock = threading.Lock()

    def note(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Append one line: the payload, the thread and the session variables bound there."""
        line = json.dumps({
            "kind": kind, "payload": dict(payload), "bound": bound_variables(),
            "thread": threading.current_thread().name,
        }, default=plain)
        with self._lock, (self.home / "probe.jsonl").open("a", encoding="utf-8") as journal:
            journal.write(line + "\n")

    def observer(self, kind: str) -> Any:
        def observe(**payload: Any) -> None:
            self.note(kind, payload)

        return observe

    # -- hooks ---------------------------------------------------------------------------------

    def pre_llm_call(self, **payload: Any) -> Any:
        self.note("pre_llm_call", payload)
        if "PROBE-BLOCK" in str(payload.get("user_message")):
            return {"action": "block", "message": "blocked by the probe"}
        return None

    def pre_tool_call(self, **payload: Any) -> Any:
        self.note("pre_tool_call", payload)
        wish = (payload.get("args") or {}).get("probe")
        if wish == "raise":
            raise RuntimeError("the probe raised")
        answers: dict[Any, Any] = {
            "block": {"action": "block", "message": "blocked by the probe"},
            "block-empty": {"action": "block", "message": ""},
            "odd": ["block"],
        }
        return answers.get(wish)

    def post_gateway_admission(self, **payload: Any) -> Any:
        self.note("post_gateway_admission", payload)
        if "PROBE-HANDLED" in payload["text"]:
            reply = f"handled for {payload['source']['user_id']}"
            return {"action": "handled", "reply": reply}
        if "PROBE-SILENT" in payload["text"]:
            return {"action": "handled", "reply": None}
        return None

    # -- middleware ----------------------------------------------------------------------------

    def llm_request(self, **payload: Any) -> None:
        request = payload.pop("request")
        payload.pop("original_request", None)
        self.note("llm_request", payload | {"keys": sorted(request)})
        if "PROBE-REQUEST-RAISES" in last_user_text(request):
            request["messages"][0]["content"] = "SPOILT BY THE PROBE"
            raise RuntimeError("the probe raised")

    def llm_execution(self, **payload: Any) -> Any:
        request, next_call = payload["request"], payload["next_call"]
        if "PROBE-CANNED" not in last_user_text(request):
            return next_call(request)
        message = SimpleNamespace(
            role="assistant", content="canned by the probe", tool_calls=None, refusal=None
        )
        choice = SimpleNamespace(index=0, message=message, finish_reason="stop")
        usage = SimpleNamespace(prompt_tokens=0, completion_tokens=0, total_tokens=0)
        return SimpleNamespace(id="probe", model="probe", choices=[choice], usage=usage)

    # -- tool, command, transport --------------------------------------------------------------

    def tool(self, args: Any, **payload: Any) -> str:
        self.note("tool", {"args": args, "handed": payload})
        if args.get("wait"):
            self._wait_for(self.home / args["wait"])
        return json.dumps({"probe": args})

    def command(self, raw_args: str, **payload: Any) -> str:
        self.note("command", {"raw_args": raw_args, "handed": payload})
        verb, _, rest = raw_args.partition(" ")
        if verb == "config":
            return json.dumps(self.ctx.get_config(rest, None))
        if verb == "inject":
            return json.dumps(self.ctx.inject_message(**json.loads(rest)))
        return f"PROBE {raw_args}"

    def present(self, request: Any) -> Any:
        fields = {name: getattr(request, name) for name in request.__dataclass_fields__}
        self.note("transport", fields)
        if "probe-raise" in request.command:
            raise RuntimeError("the probe raised")
        return request.respond("once" if "probe-once" in request.command else "deny")

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + WAIT_LIMIT_S
        while not path.exists() and time.monotonic() < deadline:
            threading.Event().wait(0.02)


def bound_variables() -> dict[str, str]:
    """The host's session variables of this context, by name, as far as they are bound."""
    names = ((var.name, value) for var, value in contextvars.copy_context().items())
    return {n: v for n, v in names if n.startswith("HERMES_SESSION_") and isinstance(v, str) and v}


def last_user_text(request: Mapping[str, Any]) -> str:
    texts = [m.get("content") for m in request.get("messages", ()) if m.get("role") == "user"]
    return str(texts[-1]) if texts else ""


def plain(value: Any) -> Any:
    """What JSON cannot hold: a mapping as a dictionary, a sequence as a list, else its repr."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (tuple, set, frozenset)) else repr(value)


def register(ctx: Any) -> None:
    probe = Probe(ctx, Path(os.environ["HERMES_HOME"]))
    ctx.register_hook("pre_llm_call", probe.pre_llm_call)
    ctx.register_hook("pre_tool_call", probe.pre_tool_call)
    ctx.register_hook("post_gateway_admission", probe.post_gateway_admission)
    for kind in OBSERVED:
        ctx.register_hook(kind, probe.observer(kind))
    ctx.register_middleware("llm_request", probe.llm_request)
    ctx.register_middleware("llm_execution", probe.llm_execution)
    ctx.register_approval_transport("probe", probe.present)
    ctx.register_command("probe", probe.command, description="the probe", args_hint="[text]")
    properties = {name: {"type": "string"} for name in ("probe", "wait", "note")}
    schema = {
        "name": "probe_tool", "description": "Does nothing.",
        "parameters": {"type": "object", "properties": properties},
    }
    ctx.register_tool(name="probe_tool", toolset="probe", handler=probe.tool, schema=schema,
                      description="Does nothing.")
