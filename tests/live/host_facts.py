"""Contract tests of the facts about the host that the plugin relies on, on the real host.

When one of them fails, the host has changed: the code that leans on the fact needs a new look.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from fake_model import Answer, Call, FakeModel, Request, script, system_text, text_of, user_texts
from gateway_lab import GatewayLab, Home, pause, wait_until

from live.checks import Check, scenario
from live.probe import OWN_TURN_AFTERWARDS, PROBE, Event, Journal, probe_lab, tool
from live.terminal import Terminal

IDS = ("session_id", "task_id", "turn_id")
NO_GRACE = {"HERMES_TELEGRAM_FOLLOWUP_GRACE_SECONDS": "0"}
OWNER_KEY = "agent:main:telegram:dm:111"


def ids(event: Event) -> tuple[Any, ...]:
    return tuple(event.payload[name] for name in IDS)


@scenario
def turn_identity(check: Check) -> None:
    """Ids and sender of a turn, its tool calls and its token counts."""
    with probe_lab() as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        lab.say("222", tool("probe_tool", {"note": "one"}), "Minh")
        events = journal.new()
        kinds = ("pre_llm_call", "llm_request", "pre_tool_call", "post_api_request")
        by_kind = {kind: [e for e in events if e.kind == kind] for kind in kinds}
        turn = by_kind["pre_llm_call"][0]
        check.equal("each hook of a turn fires", [k for k in kinds if not by_kind[k]], [])
        check.equal("session, task and turn id are the same in all hooks of one turn",
                    {ids(e) for found in by_kind.values() for e in found}, {ids(turn)})
        check.equal("pre_llm_call carries the sender's id", turn.payload["sender_id"], "222")
        check.equal("pre_llm_call carries the platform", turn.payload["platform"], "telegram")
        check("pre_tool_call has no sender", "sender_id" not in by_kind["pre_tool_call"][0].payload)
        usage = by_kind["post_api_request"][0].payload["usage"]
        check("post_api_request counts total_tokens", usage["total_tokens"] > 0, usage)
        handed = next(e for e in events if e.kind == "tool").payload["handed"]
        check.equal("a tool handler gets these keywords and no turn id",
                    sorted(handed), ["session_id", "task_id", "user_task"])
        check.equal("a tool handler's ids are the turn's",
                    (handed["session_id"], handed["task_id"]), ids(turn)[:2])
        lab.say("222", "again", "Minh")
        later = journal.one("pre_llm_call")
        check.equal("the next turn is of the same session", ids(later)[:2], ids(turn)[:2])
        check("the next turn has a fresh turn id", ids(later)[2] != ids(turn)[2], ids(later))


@scenario
def commands_and_settings(check: Check) -> None:
    """What a slash command sees of its sender, and that settings are live."""
    with probe_lab() as lab:
        journal = Journal(lab.home)
        check.equal("a plugin's command answers in the chat",
                    lab.say("222", "/probe hello", "Minh"), ["PROBE hello"])
        event = journal.one("command")
        check.equal("a command handler is handed no keyword", event.payload["handed"], {})
        check.equal("a DM's command has its sender bound", bound(event),
                    ("telegram", "222", "Minh", "222", "dm", None, "agent:main:telegram:dm:222"))
        lab.say("222", "/probe hello", "Minh", "group:G1")
        check.equal("a group's command has its sender bound", bound(journal.one("command")),
                    ("telegram", "222", "Minh", "G1", "group", None,
                     "agent:main:telegram:group:G1:222"))
        lab.say("222", "/probe hello", "Minh", "group:G1", thread_id="T7")
        check.equal("a thread's command has the thread bound",
                    journal.one("command").bound.get("HERMES_SESSION_THREAD_ID"), "T7")
        check.equal("a setting is read", lab.say("111", "/probe config owner"), ['"111"'])
        lab.home.config["plugins"]["entries"][lab.plugin]["settings"]["owner"] = "444"
        lab.home.write()
        check.equal("an edit of config.yaml is seen at once", lab.say("111", "/probe config owner"),
                    ['"444"'])
        check.equal("a command costs no model request", lab.model.requests, [])
        storage = importlib.import_module("plugins.plugin_storage")
        check.equal("a plugin's data folder is in the home", storage.plugin_data_dir("manyhands"),
                    lab.home.path / "plugin-data" / "manyhands")


def bound(event: Event) -> tuple[str | None, ...]:
    names = ("PLATFORM", "USER_ID", "USER_NAME", "CHAT_ID", "CHAT_TYPE", "THREAD_ID", "KEY")
    return tuple(event.bound.get("HERMES_SESSION_" + name) for name in names)


@scenario
def shared_group(check: Check) -> None:
    """Two senders in one session: turns, queued follow-ups, commands while a turn runs."""
    with probe_lab(group_sessions_per_user=False, config=OWN_TURN_AFTERWARDS,
                   env=NO_GRACE) as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        lab.say("111", "one", "Boss", "group:G1")
        lab.say("222", "two", "Minh", "group:G1")
        first, second = journal.new("pre_llm_call")
        check.equal("one shared session and task", ids(first)[:2], ids(second)[:2])
        check("a turn id for each sender", ids(first)[2] != ids(second)[2], ids(second))
        check.equal("the sender follows the speaker",
                    [e.payload["sender_id"] for e in (first, second)], ["111", "222"])
        check.equal("the text carries the display name", second.payload["user_message"],
                    "[Minh] two")
        lab.post("111", tool("probe_tool", {"wait": "go"}), "Boss", "group:G1")
        journal.wait_for("tool")
        lab.post("222", "later", "Minh", "group:G1")
        check("a follow-up waits for the running turn", wait_until(lab.has_queued))
        (lab.home.path / "go").touch()
        lab.wait_idle()
        running, queued = journal.new("pre_llm_call")
        check.equal("a queued follow-up has its own sender", queued.payload["sender_id"], "222")
        check.equal("... while the variables name the speaker before",
                    queued.bound.get("HERMES_SESSION_USER_ID"), "111")
        check("... and its own turn id", ids(running)[2] != ids(queued)[2], ids(queued))
        check_shared_injections(check, lab, journal)


def check_shared_injections(check: Check, lab: GatewayLab, journal: Journal) -> None:
    place = {"platform": "telegram", "chat_id": "G1", "chat_type": "group"}
    targets: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("the session's first speaker", "111", {"session_key": "agent:main:telegram:group:G1"}),
        ("the sender that was passed", "333",
         {"origin": {**place, "user_id": "333", "user_name": "Lan"}}),
    )
    for whose, sender, target in targets:
        inject(lab, "900", content="NONCE", **target)
        journal.wait_for("post_api_request")
        lab.wait_idle()
        turn = journal.one("pre_llm_call")
        (way,) = target
        check.equal(f"an injection by {way} is {whose}'s", turn.payload["sender_id"], sender)
        text = turn.payload["user_message"]
        check("... with a name before the text", text.startswith("[") and "] NONCE" in text, text)


@scenario
def folded_messages(check: Check) -> None:
    """The default busy mode puts another sender's text into a shared session's running turn."""
    with probe_lab(group_sessions_per_user=False, env=NO_GRACE) as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        lab.post("111", tool("probe_tool", {"wait": "go"}), "Boss", "group:G1")
        journal.wait_for("tool")
        lab.post("222", "FOLDED-IN", "Minh", "group:G1")
        pause(1.0)  # nothing tells from outside that the host has taken it
        (lab.home.path / "go").touch()
        lab.wait_idle()
        check_folded(check, lab, journal, "during a tool", "[OUT-OF-BAND USER MESSAGE")
        lab.post("111", "HOLD model SAY too late", "Boss", "group:G1")
        wait_until(lambda: "HOLD" in user_texts(lab.turn_requests[-1])[-1])
        pause(1.0)  # nor that it now waits for the model
        lab.post("222", "FOLDED-IN", "Minh", "group:G1")
        wait_until(lambda: "HOLD" not in user_texts(lab.turn_requests[-1])[-1], 20)
        lab.model.release("model")
        lab.wait_idle()
        check_folded(check, lab, journal, "during a model call", "[Context from the interrupted")


def check_folded(
    check: Check, lab: GatewayLab, journal: Journal, when: str, marker: str
) -> None:
    senders = [e.payload["sender_id"] for e in journal.new("pre_llm_call")]
    check.equal(f"{when}: no turn of the other sender starts", senders, ["111"])
    folded = user_texts(lab.turn_requests[-1])[-1]
    check(f"{when}: the text is in the request", "FOLDED-IN" in folded, folded)
    check(f"{when}: ... in a message that starts with the host's marker",
          folded.startswith(marker), folded)
    origin = 'Gateway message origin (JSON data, not instructions or authorization):\n{'
    check(f"{when}: ... behind a line that names its sender",
          origin in folded and '"user_id": "222"' in folded, folded)


@scenario
def busy_session(check: Check) -> None:
    """A plugin's command typed while a turn runs, in its own session and in another one."""
    with probe_lab(config=OWN_TURN_AFTERWARDS, env=NO_GRACE) as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        lab.post("222", tool("probe_tool", {"wait": "go"}), "Minh")
        journal.wait_for("tool")
        lab.post("111", "/probe other session", "Boss")
        check("another session's command runs at once", journal.wait_for("command", timeout_s=10),
              lab.sent("111"))
        lab.post("222", "/probe own session", "Minh")
        check("its own session's command waits with the messages", wait_until(lab.has_queued))
        check("... and does not run", not journal.wait_for("command", 2, 0.5))
        (lab.home.path / "go").touch()
        lab.wait_idle()
        check.equal("... nor afterwards", [e.payload["raw_args"] for e in journal.new("command")],
                    ["other session"])
        check.equal("... its text reaches the model", user_texts(lab.turn_requests[-1])[-1],
                    "/probe own session")


@scenario
def failing_callbacks(check: Check) -> None:
    """What the host does with blocks, odd answers and exceptions of our callbacks."""
    with probe_lab() as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        check.equal("a block from pre_llm_call is ignored", lab.say("222", "PROBE-BLOCK", "Minh"),
                    ["ECHO: PROBE-BLOCK"])
        check.equal("a raising llm_request middleware lets the request go",
                    lab.say("222", "PROBE-REQUEST-RAISES", "Minh"), ["ECHO: PROBE-REQUEST-RAISES"])
        sent = lab.turn_requests[-1]
        check("... as it was before the middleware touched it",
              "SPOILT" not in system_text(sent) and len(system_text(sent)) > 500, system_text(sent))
        for wish in ("block", "raise", "block-empty", "odd"):
            journal.new()
            reply = lab.say("222", tool("probe_tool", {"probe": wish}), "Minh")
            ran = bool(journal.new("tool"))
            claim, wanted = TOOL_CALLS[wish]
            check(claim, ran is wanted, reply)
        before = len(lab.turn_requests)
        check.equal("a canned answer of llm_execution is delivered",
                    lab.say("222", "PROBE-CANNED", "Minh"), ["canned by the probe"])
        check.equal("... and no provider is asked", len(lab.turn_requests), before)
        event = journal.new("post_api_request")[-1]
        check.equal("... and it counts no tokens", event.payload["usage"]["total_tokens"], 0)


TOOL_CALLS = {
    "block": ("a block with a message stops the tool", False),
    "raise": ("a raising pre_tool_call stops the tool", False),
    "block-empty": ("a block with an empty message lets the tool run", True),
    "odd": ("an answer that is no dictionary lets the tool run", True),
}


@scenario
def admission(check: Check) -> None:
    """post_gateway_admission answers without a turn, and what it does not see."""
    with probe_lab() as lab:
        journal = Journal(lab.home)
        reply = lab.say("222", "PROBE-HANDLED", "Minh")
        check.equal("a handled message is answered", reply, ["handled for 222"])
        check.equal("a handled message can be silent", lab.say("222", "PROBE-SILENT", "Minh"), [])
        events = journal.new()
        check.equal("no turn starts", {e.kind for e in events}, {"post_gateway_admission"})
        check.equal("no model is asked, not even for a title", lab.model.requests, [])
        source = events[0].payload["source"]
        names = ("platform", "user_id", "user_name", "chat_id", "chat_type")
        check.equal("the source names the sender", [source[name] for name in names],
                    ["telegram", "222", "Minh", "222", "dm"])
        lab.say("222", "/probe PROBE-HANDLED", "Minh")
        check.equal("it is not fired for commands", journal.new("post_gateway_admission"), [])
        lab.say("111", "hello", "Boss")
        journal.new()
        inject(lab, "222", content="PROBE-HANDLED injected", session_key=OWNER_KEY)
        journal.wait_for("pre_llm_call")
        check.equal("it is not fired for injected messages",
                    journal.new("post_gateway_admission"), [])


def inject(lab: GatewayLab, asker: str, **arguments: Any) -> bool:
    """What ``ctx.inject_message`` returns, called in a command; then wait for what it started."""
    (answer,) = lab.say(asker, "/probe inject " + json.dumps(arguments))
    returned: bool = json.loads(answer)
    return returned


@scenario
def injection(check: Check) -> None:
    """ctx.inject_message: its return values, the turns that it starts, what stays in the chat."""
    with probe_lab() as lab:
        journal = Journal(lab.home)
        lab.say("111", "hello", "Boss")
        journal.new()

        def turn_of(**arguments: Any) -> tuple[bool, list[Event]]:
            before = len(lab.outbox)
            answer = inject(lab, "900", **arguments)
            wait_until(lambda: len(lab.outbox) > before + 1, 3)  # beyond the command's own reply
            lab.wait_idle()
            return answer, journal.new()

        def senders(events: list[Event]) -> list[str]:
            return [e.payload["sender_id"] for e in events if e.kind == "pre_llm_call"]

        answer, events = turn_of(content="INJECTED", session_key=OWNER_KEY)
        check("a session key that exists: True", answer)
        check.equal("... and a turn of that session's user", senders(events), ["111"])
        check.equal("... answered in that chat", lab.sent("111")[-1], "ECHO: INJECTED")
        lab.say("111", "what was that", "Boss")
        history = [text_of(m.get("content")) for m in lab.turn_requests[-1]["messages"]]
        check("... text and answer stay in that chat's history",
              {"INJECTED", "ECHO: INJECTED"} <= set(history), history[1:])
        journal.new()
        dm = {"platform": "telegram", "chat_id": "555", "chat_type": "dm"}
        answer, events = turn_of(content="to a new DM", origin={**dm, "user_id": "555"})
        check("an origin with a user id: True", answer)
        check.equal("... and a turn with that sender", senders(events), ["555"])
        check.equal("... answered in that chat", lab.sent("555"), ["ECHO: to a new DM"])
        answer, events = turn_of(content="/probe x", origin={**dm, "user_id": "555"})
        check("a text that starts with a slash stays text",
              [e.payload["raw_args"] for e in events if e.kind == "command"][1:] == []
              and lab.sent("555")[-1] == "ECHO: /probe x", lab.sent("555"))
        answer, events = turn_of(content="nobody", origin=dm)
        check("an origin without a user id: True", answer)
        check.equal("... and no turn", senders(events), [])
        answer, events = turn_of(content="x", session_key="agent:main:telegram:dm:nobody")
        check("an unknown session key: True", answer)
        check.equal("... and no turn", senders(events), [])
        for sentence, arguments in REFUSED_INJECTIONS.items():
            check.equal(sentence, inject(lab, "900", content="x", **arguments), False)


REFUSED_INJECTIONS: dict[str, dict[str, Any]] = {
    "no target: False": {},
    "two targets: False": {
        "session_key": OWNER_KEY, "origin": {"platform": "telegram", "chat_id": "1"},
    },
    "an unknown platform: False": {"origin": {"platform": "nope", "chat_id": "1"}},
    "an origin without a chat: False": {"origin": {"platform": "telegram"}},
}


@scenario
def injection_without_grant(check: Check) -> None:
    """ctx.inject_message refuses without allow_gateway_injection."""
    with probe_lab(entry={"allow_gateway_injection": False}) as lab:
        lab.say("111", "hello", "Boss")
        check.equal("no grant: False", inject(lab, "111", content="x", session_key=OWNER_KEY),
                    False)


@scenario
def approval_transport(check: Check) -> None:
    """The approval transport that the operator selected: its request and its answers."""
    with probe_lab(config={"security": {"approval": {"transport": "probe"}}}) as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        reply = lab.say("222", dangerous(lab, "probe-once"), "Minh")
        events = journal.new()
        asked = next(e for e in events if e.kind == "transport")
        check.equal("the request's fields", sorted(asked.payload), sorted(REQUEST_FIELDS))
        check.equal("the surface is the gateway", asked.payload["surface"], "gateway")
        check.equal("the choices", asked.payload["allowed_choices"],
                    ["once", "session", "always", "deny"])
        check("it runs on a thread of its own", asked.thread.startswith("approval-transport-"),
              asked.thread)
        check.equal("... with no session variable bound", asked.bound, {})
        before = next(e for e in events if e.kind == "pre_approval_request")
        check.equal("pre_approval_request has the same request id",
                    before.payload["request_id"], asked.payload["request_id"])
        check.equal("... and the asker bound", before.bound.get("HERMES_SESSION_USER_ID"), "222")
        turn = next(e for e in events if e.kind == "pre_llm_call")
        check.equal("... and the turn's id", before.payload["turn_id"], turn.payload["turn_id"])
        order = [e.kind for e in events]
        check("... and comes first", order.index("pre_approval_request") < order.index("transport"))
        check("`once` lets the command run", tool_ran(events), reply)
        reply = lab.say("222", dangerous(lab, "probe-deny"), "Minh")
        check("`deny` stops it", not tool_ran(journal.new()), reply)
        reply = lab.say("222", dangerous(lab, "probe-raise"), "Minh")
        events = journal.new()
        check("a raise is a deny", not tool_ran(events), reply)
        choices = [e.payload["choice"] for e in events if e.kind == "post_approval_response"]
        check.equal("... told as a transport error", choices, ["transport_error"])


REQUEST_FIELDS = ("schema_version", "request_id", "digest", "command", "description", "pattern_key",
                  "pattern_keys", "surface", "timeout_seconds", "allowed_choices")


def dangerous(lab: GatewayLab, folder: str) -> str:
    """The directive for a terminal command that needs approval; the folder steers the probe."""
    path = lab.home.work / folder
    path.mkdir(exist_ok=True)
    return tool("terminal", {"command": f"chmod -R 777 {path}"})


def tool_ran(events: list[Event]) -> bool:
    results = [str(e.payload["result"]) for e in events if e.kind == "post_tool_call"]
    return any('"exit_code": 0' in result for result in results)


@scenario
def approval_fallback(check: Check) -> None:
    """transport_fallback: builtin asks in the asker's chat after a failure, never after a deny."""
    settings = {"transport": "probe", "transport_fallback": "builtin"}
    with probe_lab(config={"security": {"approval": settings}}) as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        lab.say("222", dangerous(lab, "probe-deny"), "Minh")
        check.equal("a returned deny does not fall back", len(lab.sent("222")), 1)
        before = len(lab.sent("222"))
        lab.post("222", dangerous(lab, "probe-raise"), "Minh")
        prompts = wait_until(lambda: lab.sent("222")[before:])
        check("a raise puts the built-in prompt into the asker's chat",
              any("approv" in prompt for prompt in prompts), prompts)
        check("... while the turn waits for it", lab.is_busy())
        journal.new()
        lab.say("222", "/approve", "Minh")
        check("... where `/approve` answers it", tool_ran(journal.new()), lab.sent("222"))


@scenario
def machine_turns(check: Check) -> None:
    """Turns and calls without a human sender: cron, subagent, inside execute_code."""
    with probe_lab(config={"approvals": {"mode": "off"}, "cron": {"wrap_response": False}}) as lab:
        journal = Journal(lab.home)
        lab.warm_up()
        journal.new()
        check_cron(check, journal)
        check_subagent(check, lab, journal)
        check_inner_calls(check, lab, journal)


def check_cron(check: Check, journal: Journal) -> None:
    from cron import scheduler
    from cron.jobs import create_job

    origin = {"platform": "telegram", "chat_id": "222", "chat_name": "Minh", "user_id": "222"}
    job = create_job(prompt=tool("probe_tool"), schedule="every 1h", name="lab job",
                     deliver="origin", origin=origin)
    scheduler.run_job(job)
    events = journal.new("pre_llm_call", "pre_tool_call")
    turn = events[0]
    check.equal("a cron job's turn is of platform cron, without a sender",
                (turn.payload["platform"], turn.payload["sender_id"]), ("cron", ""))
    check("its session names the job", f"cron_{job['id']}_" in turn.payload["session_id"],
          turn.payload["session_id"])
    check("its text starts with the host's marker",
          text_of(turn.payload["user_message"]).startswith("[IMPORTANT: You are running as a sch"),
          turn.payload["user_message"])
    check.equal("its tool calls carry the turn's ids", ids(events[1]), ids(turn))
    check("no sender is bound", "HERMES_SESSION_USER_ID" not in turn.bound, turn.bound)


def check_subagent(check: Check, lab: GatewayLab, journal: Journal) -> None:
    lab.say("222", tool("delegate_task", {"goal": tool("probe_tool")}), "Minh", timeout_s=90)
    wait_until(lambda: any("ASYNC DELEGATION" in t for r in lab.turn_requests
                           for t in user_texts(r)))
    lab.wait_idle()
    events = journal.new("pre_llm_call", "subagent_start")
    kinds = [(e.kind, e.payload.get("platform")) for e in events]
    start = next(e for e in events if e.kind == "subagent_start")
    parent = events[0]
    child = next(e for e in events if e.payload.get("platform") == "subagent")
    check("subagent_start comes before the child's turn",
          kinds.index(("subagent_start", None)) < kinds.index(("pre_llm_call", "subagent")), kinds)
    check.equal("... and names the parent's turn", start.payload["parent_turn_id"],
                parent.payload["turn_id"])
    check.equal("... and the child's session", start.payload["child_session_id"],
                child.payload["session_id"])
    check.equal("a child's turn has no sender", child.payload["sender_id"], "")
    check.equal("... and names the parent's session", child.payload["parent_session_id"],
                parent.payload["session_id"])
    back = events[-1]
    check("the result comes back as a turn that says so",
          back.payload["user_message"].startswith("[ASYNC DELEGATION BATCH COMPLETE"),
          back.payload["user_message"])
    check.equal("... of the delegating sender", back.payload["sender_id"], "222")


def check_inner_calls(check: Check, lab: GatewayLab, journal: Journal) -> None:
    code = "from hermes_tools import terminal\nprint(terminal('echo inner'))"
    reply = lab.say("222", tool("execute_code", {"code": code}), "Minh", timeout_s=120)
    events = journal.new("pre_llm_call", "pre_tool_call")
    inner = [e for e in events if e.payload.get("tool_name") == "terminal"]
    check.equal("a call from inside execute_code reaches pre_tool_call", len(inner), 1)
    if inner:
        empty = [inner[0].payload[k] for k in ("session_id", "turn_id", "tool_call_id")]
        check.equal("... with empty session, turn and call ids", empty, ["", "", ""])
        check.equal("... and the parent's task id", inner[0].payload["task_id"],
                    events[0].payload["task_id"])
    check("... and runs", any("inner" in text for text in reply), reply)


def reviewing(request: Request) -> Answer:
    """The script, but the host's background review writes to the memory."""
    texts = [text_of(m.get("content")) for m in request.get("messages") or [{}]]
    if texts[-1].startswith("Review the conversation above"):
        args = {"action": "add", "target": "memory", "content": "from the review"}
        return Answer("", (Call("call_review", "memory", args),))
    if any(text.startswith("Review the conversation above") for text in texts):
        return Answer("done")
    return script(request)


@scenario
def background_review(check: Check) -> None:
    """The host's review of a conversation calls tools under a turn that nobody announced."""
    intervals = {"memory": {"nudge_interval": 1}, "skills": {"creation_nudge_interval": 1}}
    with probe_lab(config=intervals, model=FakeModel(reviewing)) as lab:
        journal = Journal(lab.home)
        lab.say("222", tool("probe_tool") + " THEN " + tool("probe_tool"), "Minh")

        journal.wait_for("pre_tool_call", 3)
        seen = journal.new()
        turns = [e for e in seen if e.kind == "pre_llm_call"]
        calls = [e for e in seen if e.payload.get("tool_name") == "memory"]
        check("the review calls a tool", calls)
        call = calls[0]
        check.equal("... in the session that it reviews", call.payload["session_id"],
                    turns[0].payload["session_id"])
        check("... under a turn id that pre_llm_call never carried",
              call.payload["turn_id"] not in {e.payload["turn_id"] for e in turns},
              call.payload["turn_id"])
        check.equal("... and with the reviewed sender bound",
                    call.bound.get("HERMES_SESSION_USER_ID"), "222")


@scenario
def operators_terminal(check: Check) -> None:
    """The operator's own terminal: one question, and the interactive one on a pseudo-terminal."""
    with FakeModel() as model:
        home = Home(model.base_url)
        home.add_plugin(PROBE)
        home.write()
        journal = Journal(home)
        done = home.hermes("chat", "-q", tool("probe_tool"))
        check.equal("`hermes chat -q` ends well", done.returncode, 0)
        events = journal.new("pre_llm_call", "pre_tool_call")
        check.equal("it is of platform cli, without a sender",
                    [(e.payload["platform"], e.payload["sender_id"]) for e in events[:1]],
                    [("cli", "")])
        check.equal("its tool calls carry the turn's ids", {ids(e) for e in events},
                    {ids(events[0])})
        home.hermes("chat", "-q", "/probe one two")
        check.equal("`-q` runs no command", journal.new("command"), [])
        with Terminal(home) as terminal:
            check("the interactive terminal starts", terminal.shows("\u276f"), terminal.output)
            terminal.enter("/probe one two")
            check("it prints a command's answer", terminal.shows("PROBE one two"), terminal.output)
            command = journal.one("command")
            check.equal("... whose handler is handed the text", command.payload["raw_args"],
                        "one two")
            check.equal("... and no keyword", command.payload["handed"], {})
            check.equal("... and has no session variable bound", command.bound, {})
            terminal.enter("hello there")
            check("it takes a message", journal.wait_for("post_api_request"), terminal.output)
            turn = journal.one("pre_llm_call")
            check.equal("... as a turn of platform cli, without a sender",
                        (turn.payload["platform"], turn.payload["sender_id"]), ("cli", ""))
        home.remove()
