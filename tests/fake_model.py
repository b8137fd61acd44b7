"""A scripted model server on loopback: OpenAI-compatible chat completions, standard library only.

What it answers is a function of the request. The last ``user`` message is scanned for directives:

    TOOL name {json}            call that tool (several in a row are one parallel batch)
    THEN TOOL name {json}       ... in the next round, after the batch before it has returned
    SAY some text               the final answer (to the end of the line)
    HOLD name                   answer only after ``model.release(name)``
    FAIL 500 2                  answer HTTP 500 to the first two requests that carry this directive

The number of tool-calling assistant messages after that user message says which round is due.
When all rounds are done the answer is the ``SAY`` text, else ``RESULT: <tool outputs>``; a message
without directives is answered with ``ECHO: <its text>``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]

HOLD_LIMIT_S = 60.0
_TOOL = re.compile(r"(?:(THEN)\s+)?\bTOOL\s+([A-Za-z0-9_\-.]+)\s+(?=\{)")
_SAY = re.compile(r"\bSAY\s+([^\n]+)")
_HOLD = re.compile(r"\bHOLD\s+(\w+)")
_FAIL = re.compile(r"\bFAIL\s+(\d{3})\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an answer."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says to one request; ``prompt`` is the text whose HOLD and FAIL apply."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    prompt: str = ""


Brain = Callable[[Request], Answer]


def text_of(content: object) -> str:
    """The text of a message's content, whether it is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def user_texts(request: Request) -> list[str]:
    """The text of every user message of a request, in order."""
    messages = request.get("messages") or []
    return [text_of(m.get("content")) for m in messages if m.get("role") == "user"]


def system_text(request: Request) -> str:
    """The text of the request's system prompt."""
    messages = request.get("messages") or [{}]
    return text_of(messages[0].get("content"))


def script(request: Request) -> Answer:
    """The answer that the directives of the last user message ask for."""
    messages = request.get("messages") or []
    last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    prompt = text_of(messages[last].get("content")) if last >= 0 else ""
    since = messages[last + 1 :]
    if not request.get("tools") and "title" in system_text(request)[:200].lower():
        return Answer('{"title": "Lab chat"}')  # the host is naming the chat
    rounds = _rounds(prompt)
    done = sum(1 for m in since if m.get("role") == "assistant" and m.get("tool_calls"))
    if done < len(rounds) and request.get("tools"):
        calls = enumerate(rounds[done])
        return Answer("", tuple(Call(f"call_{last}_{done}_{n}", *c) for n, c in calls), prompt)
    said = _SAY.search(prompt)
    if said:
        return Answer(said.group(1).strip(), prompt=prompt)
    results = list(_trailing_results(since))
    if results:
        return Answer("RESULT: " + "\n".join(reversed(results)), prompt=prompt)
    return Answer("ECHO: " + prompt, prompt=prompt)


def _rounds(text: str) -> list[list[tuple[str, dict[str, Any]]]]:
    rounds: list[list[tuple[str, dict[str, Any]]]] = []
    decoder = json.JSONDecoder()
    found = _TOOL.search(text)
    while found:
        try:
            args, end = decoder.raw_decode(text, found.end())
        except ValueError:
            end = found.end()
        else:
            if found.group(1) or not rounds:
                rounds.append([])
            rounds[-1].append((found.group(2), args))
        found = _TOOL.search(text, end)
    return rounds


def _trailing_results(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in reversed(messages):
        if message.get("role") != "tool":
            return
        yield text_of(message.get("content"))


class FakeModel:
    """The server: ``base_url`` for the host's settings, ``requests`` for what it asked."""

    def __init__(self, brain: Brain = script, *, model: str = "fake-model") -> None:
        self.model = model
        self.brain = brain
        self.requests: list[Request] = []
        self._failed: dict[str, int] = {}
        self._released: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="fake-model", daemon=True
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def start(self) -> FakeModel:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> FakeModel:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def release(self, name: str) -> None:
        """Let every answer that holds for ``name`` go, now and from now on."""
        self._gate(name).set()

    def record(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def hold(self, answer: Answer) -> None:
        """Wait for the gate that the prompt names, at most ``HOLD_LIMIT_S`` seconds."""
        held = _HOLD.search(answer.prompt)
        if held:
            self._gate(held.group(1)).wait(HOLD_LIMIT_S)

    def failure(self, answer: Answer) -> int | None:
        """The HTTP status to fail this request with; None when it is to be answered."""
        fail = _FAIL.search(answer.prompt)
        if not fail:
            return None
        with self._lock:
            before = self._failed.get(fail.group(0), 0)
            self._failed[fail.group(0)] = before + 1
        return int(fail.group(1)) if before < int(fail.group(2)) else None

    def _gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._released.setdefault(name, threading.Event())


def _handler_for(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: the tests print what matters."""

        def do_GET(self) -> None:
            if not self.path.rstrip("/").endswith("/models"):
                return self._json(404, {"error": {"message": "not found"}})
            entry = {"id": model.model, "object": "model", "context_length": 200000}
            return self._json(200, {"object": "list", "data": [entry]})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not self.path.rstrip("/").endswith("/chat/completions"):
                return self._json(404, {"error": {"message": "not found"}})
            request: Request = json.loads(raw or b"{}")
            model.record(request)
            answer = model.brain(request)
            model.hold(answer)
            status = model.failure(answer)
            try:
                if status is not None:
                    error = {"message": "scripted failure", "type": "server_error"}
                    self._json(status, {"error": error})
                elif request.get("stream"):
                    self._stream(_chunks(model.model, request, answer))
                else:
                    self._json(200, _completion(model.model, request, answer))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            return None

        def _json(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, chunks: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
            self.wfile.flush()
            self.close_connection = True

    return Handler


def _completion(model: str, request: Request, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = _tool_calls(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    head = {"id": "chatcmpl-lab", "object": "chat.completion", "created": 0, "model": model}
    return {**head, "choices": [choice], "usage": _usage(request, answer)}


def _chunks(model: str, request: Request, answer: Answer) -> Iterator[dict[str, Any]]:
    head = {"id": "chatcmpl-lab", "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    if answer.text:
        yield chunk({"content": answer.text})
    for index, call in enumerate(_tool_calls(answer)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _finish(answer))
    yield {**head, "choices": [], "usage": _usage(request, answer)}


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.args)},
        }
        for call in answer.calls
    ]


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _usage(request: Request, answer: Answer) -> dict[str, Any]:
    """Deterministic token counts: four characters are a token."""
    prompt = len(json.dumps(request.get("messages") or [])) // 4
    completion = len(answer.text) // 4 + 1
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
