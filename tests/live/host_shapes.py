"""Contract tests of what a provider request looks like: the api modes and the system prompt."""

from __future__ import annotations

import importlib
import os
import tempfile
from types import SimpleNamespace
from typing import Any

from fake_model import system_text, user_texts

from live.checks import Check, scenario
from live.probe import PROBE_MEMORY, probe_lab

RULE = "\u2550" * 46
TOOL = {"name": "t", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "SYSTEM"},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "out"},
    {"role": "user", "content": "second"},
]


def transport(module: str) -> Any:
    """The host's transport for one api mode."""
    host = importlib.import_module("agent.transports." + module)
    own = [v for v in vars(host).values() if getattr(v, "__module__", "") == host.__name__]
    return next(v for v in own if isinstance(v, type) and v.__name__.endswith("Transport"))()


def built(module: str, model: str) -> tuple[Any, dict[str, Any]]:
    messages = [dict(message) for message in MESSAGES]
    found = transport(module)
    tools = [{"type": "function", "function": dict(TOOL)}]
    return found, found.build_kwargs(model, messages, tools)


@scenario
def request_shapes(check: Check) -> None:
    """Where the four api modes keep the system prompt, the texts and the tools."""
    os.environ["HERMES_HOME"] = tempfile.mkdtemp()
    found, request = built("chat_completions", "gpt-4o")
    check.equal("chat_completions: mode", found.api_mode, "chat_completions")
    check.equal("chat_completions: roles", [m["role"] for m in request["messages"]],
                ["system", "user", "assistant", "tool", "user"])
    check.equal("chat_completions: system", request["messages"][0]["content"], "SYSTEM")
    check.equal("chat_completions: tools", request["tools"][0]["function"]["name"], "t")

    found, request = built("anthropic", "claude-sonnet-4-5")
    check.equal("anthropic_messages: mode", found.api_mode, "anthropic_messages")
    check("anthropic_messages: system", "SYSTEM" in str(request["system"]), request["system"])
    check.equal("anthropic_messages: roles", [m["role"] for m in request["messages"]],
                ["user", "assistant", "user"])
    last = request["messages"][-1]["content"]
    check.equal("anthropic_messages: a text can stand beside a tool's result",
                [part["type"] for part in last], ["tool_result", "text"])
    check.equal("anthropic_messages: tools", request["tools"][0]["name"], "t")

    found, request = built("codex", "gpt-5")
    check.equal("codex_responses: mode", found.api_mode, "codex_responses")
    check.equal("codex_responses: instructions", request["instructions"], "SYSTEM")
    check.equal("codex_responses: input",
                [item.get("role") or item["type"] for item in request["input"]],
                ["user", "function_call", "function_call_output", "user"])
    check.equal("codex_responses: tools", request["tools"][0]["name"], "t")

    found, request = built("bedrock", "anthropic.claude")
    check.equal("bedrock_converse: mode", found.api_mode, "bedrock_converse")
    check.equal("bedrock_converse: system", request["system"][0], {"text": "SYSTEM"})
    check.equal("bedrock_converse: first text", request["messages"][0]["content"][0],
                {"text": "first"})
    check.equal("bedrock_converse: tools",
                request["toolConfig"]["tools"][0]["toolSpec"]["name"], "t")

    caching = importlib.import_module("agent.prompt_caching")
    cached = caching.apply_anthropic_cache_control([dict(m) for m in MESSAGES])
    part = cached[0]["content"][0]
    check.equal("prompt caching makes the system prompt a list of parts",
                (part["type"], part["text"], "cache_control" in part), ("text", "SYSTEM", True))


@scenario
def canned_answers(check: Check) -> None:
    """The shape of an answer that each api mode's transport accepts."""
    os.environ["HERMES_HOME"] = tempfile.mkdtemp()
    message = SimpleNamespace(role="assistant", content="TEXT", tool_calls=None, refusal=None)
    choice = SimpleNamespace(index=0, message=message, finish_reason="stop")
    chat = SimpleNamespace(choices=[choice], usage=None)
    block = SimpleNamespace(type="text", text="TEXT")
    anthropic = SimpleNamespace(content=[block], stop_reason="end_turn", usage=None)
    part = SimpleNamespace(type="output_text", text="TEXT")
    item = SimpleNamespace(type="message", role="assistant", status="completed", content=[part])
    codex = SimpleNamespace(output=[item], status="completed", usage=None)
    answers = {"chat_completions": chat, "anthropic": anthropic, "codex": codex, "bedrock": chat}
    for module, answer in answers.items():
        found = transport(module)
        check(f"{module}: the answer is valid", found.validate_response(answer))
        plain = found.normalize_response(answer)
        check.equal(f"{module}: its text, its end and no tool call",
                    (plain.content, plain.finish_reason, plain.tool_calls or None),
                    ("TEXT", "stop", None))
    check("anthropic: a chat completion is not valid",
          not transport("anthropic").validate_response(chat))
    check("codex: a chat completion is not valid", not transport("codex").validate_response(chat))


@scenario
def system_prompt(check: Check) -> None:
    """The operator's notes in a guest's prompt: markers, order, the external provider."""
    files = {
        "memories/MEMORY.md": "NOTE-ONE\n\nstill one\n\u00a7\nNOTE-TWO",
        "memories/USER.md": "PROFILE",
        "SOUL.md": "SOUL-TEXT",
    }
    provider = {"memory": {"provider": "probe_memory"}}
    with probe_lab(files=files, config=provider, installed=[PROBE_MEMORY]) as lab:
        lab.warm_up()
        (lab.home.work / "AGENTS.md").write_text("AGENTS-TEXT", encoding="utf-8")
        lab.say("222", "tell me about the safe", "Minh")
        prompt = system_text(lab.turn_requests[-1])
        memory = f"{RULE}\nMEMORY (your personal notes) ["
        profile = f"{RULE}\nUSER PROFILE (who the user is) ["
        order = ["SOUL-TEXT", "AGENTS-TEXT", memory, "NOTE-ONE\n\nstill one\n\u00a7\nNOTE-TWO\n\n",
                 profile, "PROFILE", "PROVIDER-BLOCK", "Active Hermes profile: ",
                 "Conversation started: ", "# Hermes runtime environment",
                 "<!-- End Hermes runtime environment -->",
                 "## Current Session Context"]
        check.equal("every block is there", [b for b in order if b not in prompt], [])
        places = [prompt.find(block) for block in order]
        check.equal("... in this order", places, sorted(places))
        header = prompt[prompt.find(memory):].splitlines()[:3]
        check.equal("a header stands between two rules", (header[0], header[2]), (RULE, RULE))
        check("the provider's block directly follows the notes",
              "PROFILE\n\nPROVIDER-BLOCK\n\n" in prompt, prompt[places[4]:][:400])
        check("the profile landmark starts a line", "\nActive Hermes profile: " in prompt)
        text = user_texts(lab.turn_requests[-1])[-1]
        check("the provider's recall is appended to the user's message",
              text.startswith("tell me about the safe\n\n<memory-context>\n[System note: ")
              and text.endswith("</memory-context>") and "PROVIDER-RECALL" in text, text)
