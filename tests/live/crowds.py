"""Many people in one session on the real gateway, and work that outlives a person's turn."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_model import Answer, Call, FakeModel, Request, script, text_of, user_texts
from gateway_lab import pause, wait_until

from live.checks import Check, scenario
from live.house import EVE, KID, MINH, OWNER, House, code_in, house, system_of
from live.probe import PROBE_MEMORY, tool

ROOM = "group:G1"
NO_GRACE = {"HERMES_TELEGRAM_FOLLOWUP_GRACE_SECONDS": "0"}
QUEUE = {"display": {"busy_input_mode": "queue"}}
GATED = "host's own commands"
SEVERAL = "more than one person's words"
ASKED = "needs the owner's approval"


def writes(path: Path, text: str) -> str:
    return tool("terminal", {"command": f"echo {text} >> {path}"})


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def prompts(at: House) -> list[str]:
    """The approval prompts that the owner has had so far."""
    return [text for text in at.lab.sent(OWNER) if "Approval " in text]


def wait_for_more(texts: Callable[[], list[str]], before: int) -> bool:
    """Whether there are more texts than before, within some seconds."""
    return wait_until(lambda: len(texts()) > before, 20)


class Director:
    """The script, and tool calls on cue.

    A cue is due in the first request that holds its sign, or, for `after_tool`, a tool's result
    behind the message that holds it.
    """

    def __init__(self) -> None:
        self.cues: list[tuple[str, bool, Call]] = []

    def cue(self, sign: str, name: str, args: dict[str, Any], *, after_tool: bool = False) -> None:
        self.cues.append((sign, after_tool, Call(f"cued_{len(self.cues)}", name, args)))

    def __call__(self, request: Request) -> Answer:
        texts = [json.dumps(m, ensure_ascii=False) for m in request.get("messages") or []]
        for sign, after_tool, call in self.cues if request.get("tools") else []:
            at = next((i for i, text in enumerate(texts) if sign in text), None)
            if at is None or any(call.id in text for text in texts):
                continue
            if not after_tool or any('"role": "tool"' in text for text in texts[at:]):
                return Answer("", (call,))
        return script(request)


# -- the host's own commands -------------------------------------------------------------------


@scenario
def host_commands_are_gated(check: Check) -> None:
    """A stranger, a blocked person and a member type the host's own commands in a shared room."""
    with house(group_sessions_per_user=False, env=NO_GRACE) as at:
        at.join(MINH, "Minh")
        at.join(KID, "Kid", "guest")
        at.boss("role Kid blocked")
        at.say(OWNER, "hello room", "Boss", ROOM)
        at.lab.wait_idle()
        target = at.lab.home.work / "commanded"
        for user, name in ((EVE, "Eve"), (KID, "Kid"), (MINH, "Minh")):
            typed_by(check, at, target, user, name)
        member_and_owner_commands(check, at)
        at.boss("lockdown")
        at.lab.model.requests.clear()
        said = at.say(MINH, f"/review {writes(target, 'locked')}", "Minh", ROOM)
        check("in lockdown a member's command is refused in words", GATED in said, said)
        said = at.many(EVE, "whoami", "Eve", ROOM)
        check("in lockdown a stranger's /many answers", "roster" in said, said)
        at.lab.wait_idle()
        check.equal("in lockdown no model is asked for either", at.lab.model.requests, [])
        check.equal("nothing at all ran", read(target), "")


def commands(target: Path) -> tuple[str, ...]:
    call = writes(target, "ran")
    return (f"/review {call}", f"/Review@labbot {call}", f"/goal {call}", f"/heartbeat 1m {call}",
            f"/btw {call}", f"/refine {call}", "/yolo", "/model", "/approve", "/approve always",
            f"/bg {call}", f"/background {call}", f"/queue {call}", f"/steer {call}",
            f"/loop 1m {call}", "/retry", "/sessions all", "/memory", "/sethome", "/insights",
            "/restart", "/no-such-command")


def typed_by(check: Check, at: House, target: Path, user: str, name: str) -> None:
    at.lab.model.requests.clear()
    heard = [at.say(user, text, name, ROOM) for text in commands(target)]
    pause(1.0)  # whatever a command started in the background
    at.lab.wait_idle()
    check.equal(f"{name}: nothing ran", read(target), "")
    check.equal(f"{name}: no model was asked", len(at.lab.model.requests), 0)
    check(f"{name}: hears that it is the host's own command", GATED in heard[0], heard[0])
    if user == MINH:
        check.equal("a member hears so every time", [c for c, h in zip(
            commands(target), heard, strict=True) if GATED not in h], [])
    else:
        check.equal(f"{name}: hears it once a minute and nothing else", heard[1:],
                    [""] * (len(heard) - 1))
        said = at.many(user, "whoami", name, ROOM)
        check(f"{name}: /many still answers", "roster" in said or "blocked" in said, said)
    if user != MINH:
        said = at.say(user, "/status", name, ROOM)
        check(f"{name}: not even /status", "Session" not in said, said)


def member_and_owner_commands(check: Check, at: House) -> None:
    said = at.say(MINH, "restart gateway", "Minh")
    check("words that the host takes for /restart are gated in a member's own chat",
          GATED in said, said)
    check("a member's /status works", at.say(MINH, "/status", "Minh", ROOM))
    a_members_new(check, at)
    check("the owner's /status works", at.say(OWNER, "/status", "Boss"))
    at.say(OWNER, "hello", "Boss")
    at.lab.model.requests.clear()
    before = len(at.lab.sent(OWNER))
    at.say(OWNER, "/btw SAY aside", "Boss")
    heard = wait_until(lambda: len(at.lab.sent(OWNER)) > before + 1, 20)  # "started", the answer
    asked = [r for r in at.lab.model.requests if "SAY aside" in json.dumps(r)]
    check("the owner's /btw works, with the owner's own notes", heard and asked and all(
        "CANARY-MEMORY" in json.dumps(r) for r in asked), at.lab.sent(OWNER)[before:])
    at.lab.wait_idle()


def a_members_new(check: Check, at: House) -> None:
    """The host asks back before a /new unless `approvals.destructive_slash_confirm` is off."""
    at.say(MINH, "words of the OLD-SESSION", "Minh")
    said = at.say(MINH, "/new", "Minh")
    check("a member's /new is not refused", said and GATED not in said, said)
    said = at.say(MINH, "/approve", "Minh")
    check("but /approve is, which could answer the host's other prompts", GATED in said, said)
    said = at.say(MINH, "/cancel", "Minh")
    check("and /cancel is not", GATED not in said, said)
    at.lab.home.config["approvals"]["destructive_slash_confirm"] = False
    at.lab.home.write()
    at.say(MINH, "/new", "Minh")
    at.say(MINH, "hello", "Minh")
    check("without that question a member's /new starts a new session",
          "OLD-SESSION" not in json.dumps(at.last_request()["messages"]))


MANUAL = {"approvals": {"timeout": 20, "cron_mode": "deny"}}
BARE_WORDS = ("yes", "approve", "always", "\U0001f44d")


@scenario
def nobody_else_answers_the_hosts_prompt(check: Check) -> None:
    """The host's own approval prompt in a shared room is answered by no command of anybody else."""
    with house(group_sessions_per_user=False, config=MANUAL, env=NO_GRACE) as at:
        at.join(MINH, "Minh")
        folder = at.lab.home.work / "x"
        for words in ("/approve", "/approve always"):
            for user, name in ((MINH, "Minh"), (EVE, "Eve")):
                ask_host(at, folder)
                at.lab.post(user, words, name, ROOM)
                check(f"{name}'s {words!r} does not answer it", not is_answered(folder),
                      at.lab.sent("G1")[-3:])
                at.lab.post(OWNER, "/deny", "Boss", ROOM)
                at.lab.wait_idle(60)
        ask_host(at, folder)
        at.lab.post(OWNER, "/approve", "Boss", ROOM)
        at.lab.wait_idle(60)
        check.equal("the owner's own /approve lets it run", mode_of(folder), 0o777)
        ask_host(at, folder)
        at.lab.post(EVE, BARE_WORDS[-1], "Eve", ROOM)
        check("a host fact: a stranger's bare thumb answers it and passes no hook (this is why "
              "the transport is to be selected)", is_answered(folder), at.lab.sent("G1")[-3:])
        at.lab.wait_idle(60)


@scenario
def bare_words_answer_nothing(check: Check) -> None:
    """With the transport selected no prompt stands in a shared room, and no word there counts."""
    security = {"security": {"approval": {"transport": "manyhands",
                                          "transport_fallback": "builtin"}}, **MANUAL}
    with house(group_sessions_per_user=False, config=security, env=NO_GRACE) as at:
        at.join(MINH, "Minh")
        at.boss("tools Minh add terminal")
        folder = at.lab.home.work / "x"
        folder.mkdir()
        call = tool("terminal", {"command": f"chmod -R 777 {folder}"})
        folder.chmod(0o755)
        said = at.say(OWNER, call, "Boss", ROOM)
        check("the owner's own dangerous call in a room is denied, and no prompt stands there",
              mode_of(folder) == 0o755 and "exec_approval" not in said, said)
        for words in BARE_WORDS:
            before = len(prompts(at))
            at.lab.post(MINH, call, "Minh", ROOM)
            asked = wait_for_more(lambda: prompts(at), before)
            for user, name in ((EVE, "Eve"), (MINH, "Minh")):
                at.lab.post(user, words, name, ROOM)
            check(f"a member's call asks the owner in private and {words!r} in the room does not "
                  "answer it", asked and not is_answered(folder), at.lab.sent("G1")[-3:])
            at.boss(f"deny {code_in(prompts(at)[-1])}")
            at.lab.wait_idle(60)


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def is_answered(folder: Path) -> bool:
    return wait_until(lambda: mode_of(folder) == 0o777, 2.0)


def ask_host(at: House, folder: Path) -> None:
    """The owner's dangerous command in the room, up to the host's own prompt there."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    before = len(at.lab.sent("G1"))
    at.lab.post(OWNER, tool("terminal", {"command": f"chmod -R 777 {folder}"}), "Boss", ROOM)
    if not wait_until(lambda: any("approv" in t.lower() for t in at.lab.sent("G1")[before:]), 20):
        raise LookupError(f"the host asked nothing: {at.lab.sent('G1')[before:]}")


@scenario
def host_commands_while_busy(check: Check) -> None:
    """The same while the owner's own turn runs in the room: nothing of them reaches the model."""
    with house(group_sessions_per_user=False, env=NO_GRACE) as at:
        at.join(MINH, "Minh")
        at.join(KID, "Kid", "guest")
        at.boss("role Kid blocked")
        target = at.lab.home.work / "busy"
        for user, name in ((EVE, "Eve"), (KID, "Kid"), (MINH, "Minh")):
            with owners_slow_turn(at, f"slow{user}"):
                at.lab.model.requests.clear()
                before = len(at.lab.sent("G1"))
                for word in ("review", "yolo", "goal", "steer", "queue", "approve", "nonsense"):
                    at.lab.post(user, f"/{word} {writes(target, name)}", name, ROOM)
                pause(1.0)
            heard = at.lab.sent("G1")[before:]
            seen = json.dumps([r["messages"] for r in at.lab.model.requests])
            check.equal(f"{name}: nothing ran", read(target), "")
            check(f"{name}: no word of it reaches the model", "host-command" not in seen
                  and f"echo {name}" not in seen, seen[-1500:])
            check(f"{name}: the owner's turn is not narrowed by it", not any(
                SEVERAL in text for text in heard), heard)


# -- words folded into a running turn -----------------------------------------------------------


@contextmanager
def owners_slow_turn(at: House, word: str, user: str = OWNER, name: str = "Boss") -> Iterator[None]:
    """A turn in the room that runs a terminal command for as long as the block lasts."""
    began, gate = at.lab.home.work / f"{word}.began", at.lab.home.work / f"{word}.go"
    command = f"touch {began}; until [ -e {gate} ]; do sleep 0.1; done; echo {word} over"
    at.lab.post(user, tool("terminal", {"command": command}), name, ROOM)
    if not wait_until(began.exists, 20):
        raise LookupError(f"{name}'s turn did not reach its tool: {at.lab.sent('G1')[-3:]}")
    try:
        yield
    finally:
        gate.touch()
        at.lab.wait_idle(60)


@scenario
def folded_words_interrupt(check: Check) -> None:
    """busy_input_mode interrupt (the default): a second person's words in the owner's turn."""
    director = Director()
    with house(group_sessions_per_user=False, env=NO_GRACE, model=FakeModel(director)) as at:
        during_a_tool(check, at, director)
        during_a_model_call(check, at, director)


@scenario
def folded_words_steer(check: Check) -> None:
    """busy_input_mode steer: the same."""
    director, mode = Director(), {"display": {"busy_input_mode": "steer"}}
    with house(group_sessions_per_user=False, env=NO_GRACE, config=mode,
               model=FakeModel(director)) as at:
        during_a_tool(check, at, director)


@scenario
def folded_words_hashed(check: Check) -> None:
    """privacy.redact_pii: the marks carry hashes of the ids; the same results."""
    director, private = Director(), {"privacy": {"redact_pii": True}}
    with house(group_sessions_per_user=False, env=NO_GRACE, config=private,
               model=FakeModel(director)) as at:
        during_a_tool(check, at, director)
        seen = json.dumps(at.lab.turn_requests)
        check("the host does hash the ids here", '\\"user_id\\": \\"user_' in seen
              and '\\"user_id\\": \\"222\\"' not in seen, seen[-1500:])


def during_a_tool(check: Check, at: House, director: Director) -> None:
    """The owner's terminal command runs; a member, a stranger and a blocked person write."""
    target = at.lab.home.work / "folded"
    at.join(MINH, "Minh")
    at.join(KID, "Kid", "guest")
    at.boss("role Kid blocked")
    director.cue("FOLD-MINH", "terminal", {"command": f"echo cued >> {target}"})
    before = len(prompts(at))
    with owners_slow_turn(at, "slow1"):
        at.lab.model.requests.clear()
        at.lab.post(MINH, "FOLD-MINH please", "Minh", ROOM)
        pause(1.0)  # nothing tells from outside that the host has taken it
    seen = at.lab.turn_requests
    check("a member's words are folded into the owner's turn",
          seen and "FOLD-MINH" in json.dumps(seen[0]), seen and json.dumps(seen[0])[-1500:])
    narrowed(check, at, target, before)
    left_out(check, at, director, target, EVE, "Eve")
    left_out(check, at, director, target, KID, "Kid")
    audit = pages(at, "audit all 1")
    check("the audit tells of several speakers", "several speakers" in audit, audit[:1500])
    check("and of words that were dropped", "words dropped" in audit, audit[:1500])


def pages(at: House, verb: str) -> str:
    """All pages of a listing."""
    return "\n".join(at.boss(f"{verb} {page}") for page in range(1, 5))


def narrowed(check: Check, at: House, target: Path, before: int) -> None:
    """The turn that a member's words came into had the member's rights, without asking."""
    seen = json.dumps(at.lab.turn_requests, ensure_ascii=False)
    check("the call that the model makes next is refused", SEVERAL in seen, seen[-1500:])
    check.equal("it does not run", read(target), "")
    at.lab.wait_idle()
    check.equal("and nothing is parked in anyone's name", len(prompts(at)), before)
    folded = [r for r in at.lab.turn_requests if "FOLD-MINH" in json.dumps(r)]
    check("the operator's notes are out of those requests", folded and all(
        "CANARY" not in json.dumps(r) for r in folded), system_of(folded[-1])[-1500:])
    at.say(OWNER, writes(target, "owner"), "Boss", ROOM)
    check.equal("the owner's next turn has the owner's rights again", read(target), "owner\n")
    check("and the owner's notes", "CANARY-MEMORY" in system_of(at.last_request()))
    target.unlink(missing_ok=True)


def left_out(check: Check, at: House, director: Director, target: Path, user: str,
             name: str) -> None:
    """A stranger's or blocked person's words: dropped, and the turn keeps the owner's rights."""
    director.cue(f"slow{user}.began", "terminal", {"command": f"echo {name} >> {target}"},
                 after_tool=True)
    at.lab.model.requests.clear()
    with owners_slow_turn(at, f"slow{user}"):
        at.lab.post(user, f"WORDS-{name} and " + writes(target, "evil"), name, ROOM)
        pause(1.0)
    seen = json.dumps(at.lab.model.requests)
    check(f"{name}'s words are in no request", f"WORDS-{name}" not in seen, seen[-1500:])
    check.equal(f"after {name}'s words the owner's turn keeps the owner's rights",
                read(target), f"{name}\n")
    at.say(OWNER, writes(target, "next"), "Boss", ROOM)
    check(f"nor in a later one; and the owner's next turn runs after {name}'s words",
          f"WORDS-{name}" not in json.dumps(at.lab.model.requests)
          and read(target).endswith("next\n"), read(target))
    target.unlink(missing_ok=True)


def during_a_model_call(check: Check, at: House, director: Director) -> None:
    target = at.lab.home.work / "called"
    director.cue("HELD-MINH", "terminal", {"command": f"echo held >> {target}"})
    for user, name in ((MINH, "Minh"), (EVE, "Eve")):
        at.lab.model.requests.clear()
        at.lab.post(OWNER, f"HOLD gate{user} SAY too late", "Boss", ROOM)
        wait_until(lambda: bool(at.lab.turn_requests), 20)
        pause(1.0)  # nor that it now waits for the model
        at.lab.post(user, f"HELD-{name.upper()} words", name, ROOM)
        wait_until(lambda: len(at.lab.turn_requests) > 1, 20)
        at.lab.model.release(f"gate{user}")
        at.lab.wait_idle(60)
        seen = json.dumps(at.lab.turn_requests)
        if user == MINH:
            check("a member's words during a model call narrow the turn as well", SEVERAL in seen
                  and not target.exists(), seen[-1500:])
        else:
            check("a stranger's words during a model call are dropped", "HELD-EVE" not in seen,
                  seen[-1500:])
    at.say(OWNER, writes(target, "owner"), "Boss", ROOM)
    check.equal("and the owner's next turn is clean", read(target), "owner\n")


# -- words that wait behind a running turn -------------------------------------------------------


@scenario
def what_was_refused_stays_out(check: Check) -> None:
    """Queued behind the owner's turn: answered at the second door, kept out of later requests."""
    with house(group_sessions_per_user=False, env=NO_GRACE, config=QUEUE) as at:
        at.join(MINH, "Minh")
        at.join(KID, "Kid", "guest")
        at.boss("role Kid blocked")
        target = at.lab.home.work / "queued"
        at.lab.model.requests.clear()
        for user, name, sign in ((EVE, "Eve", "private"), (KID, "Kid", "blocked")):
            before = len(at.lab.sent("G1"))
            with owners_slow_turn(at, f"slow{user}"):
                at.lab.post(user, f"REFUSED-{name} " + writes(target, name), name, ROOM)
                at.lab.post(MINH, f"BEHIND-{name} " + writes(target, f"minh{user}"), "Minh", ROOM)
                pause(1.0)  # the host collects for a moment what comes in
            heard = at.lab.sent("G1")[before:]
            check(f"{name}'s queued message is answered at the second door", any(
                sign in text for text in heard), heard)
            check(f"the member's message behind {name}'s is the member's own", any(
                ASKED in text for text in heard) and read(target) == "", heard)
        at.say(OWNER, writes(target, "owner"), "Boss", ROOM)
        at.say(MINH, "and me?", "Minh", ROOM)
        check.equal("the owner's later turn runs", read(target), "owner\n")
        refused_words(check, json.dumps(at.lab.model.requests))


def refused_words(check: Check, seen: str) -> None:
    for sign in ("REFUSED-Eve", "REFUSED-Kid", "This bot is private", "account is blocked"):
        check(f"{sign!r} is in no later request", sign not in seen,
              seen[max(0, seen.find(sign) - 500):][:900])


@scenario
def somebody_elses_photo(check: Check) -> None:
    """The host joins a waiting photo and a waiting text of one session, whoever sent them.

    No hook sees the second message, so no plugin can tell. When this check fails, the host has
    learned to tell senders apart, and the README's limit can go.
    """
    with house(group_sessions_per_user=False, env=NO_GRACE, config=QUEUE) as at:
        at.join(MINH, "Minh")
        target = at.lab.home.work / "captioned"
        for user, name in ((EVE, "Eve"), (MINH, "Minh")):
            with owners_slow_turn(at, f"slow{user}"):
                at.lab.post(OWNER, "my next question", "Boss", ROOM)
                pause(1.5)  # the host collects for a moment what comes in
                at.post_photo(user, f"CAPTION-{name} " + writes(target, name), name, "G1")
                pause(0.5)
            check(f"a fact about the host, and a limit that the README states: the caption of "
                  f"{name}'s photo is part of the owner's waiting message", name in read(target),
                  at.lab.sent("G1")[-2:])


@scenario
def a_question_is_answered_by_its_own(check: Check) -> None:
    """The bot asks the owner in a room (clarify); what others write there is not the answer."""
    director = Director()
    with house(group_sessions_per_user=False, env=NO_GRACE, model=FakeModel(director)) as at:
        at.join(MINH, "Minh")
        at.join(KID, "Kid", "guest")
        at.boss("role Kid blocked")
        target = at.lab.home.work / "answered"
        for user, name in ((EVE, "Eve"), (KID, "Kid"), (MINH, "Minh")):
            director.cue(f"ANSWER-{name}", "terminal", {"command": f"echo {name} >> {target}"})
            asked_in_the_room(at, user, name)
            seen = json.dumps([r["messages"] for r in at.lab.turn_requests])
            if user == MINH:
                check("under a member's answer the owner's turn has not the owner's rights",
                      "Minh" not in read(target), read(target))
            else:
                check(f"{name}'s words do not answer the owner's question",
                      f"ANSWER-{name}" not in seen, seen[seen.find(f"ANSWER-{name}") - 300:][:600])
                check(f"and nothing runs on {name}'s answer", name not in read(target),
                      read(target))


def asked_in_the_room(at: House, user: str, name: str) -> None:
    """The bot asks the owner something; somebody else writes, then the owner."""
    at.lab.model.requests.clear()
    before = len(at.lab.sent("G1"))
    question = {"questions": [{"question": f"Which colour, {name}?"}]}
    at.lab.post(OWNER, tool("clarify", question), "Boss", ROOM)
    wait_for_more(lambda: at.lab.sent("G1"), before)
    pause(0.5)
    at.lab.post(user, f"ANSWER-{name}", name, ROOM)
    pause(1.0)  # nothing tells from outside that the host has taken it
    at.lab.post(OWNER, "blue", "Boss", ROOM)
    at.lab.wait_idle(60)


# -- subagents -----------------------------------------------------------------------------------

_GOAL = re.compile(r"CHILD-(\w+)")


class Family:
    """The script; a subagent with the goal CHILD-word holds for `word`, then writes it down."""

    def __init__(self) -> None:
        self.target = Path()

    def __call__(self, request: Request) -> Answer:
        text = (user_texts(request) or [""])[-1]
        goal = _GOAL.search(text)
        if "ASYNC DELEGATION" in text:
            return Answer("noted")
        if goal is None or "delegate_task" in text or not request.get("tools"):
            return script(request)
        if any(m.get("tool_calls") for m in request["messages"]):
            return Answer("child: " + text_of(request["messages"][-1].get("content")))
        args = {"command": f"echo {goal.group(1)} >> {self.target}"}
        return Answer("", (Call(f"child_{goal.group(1)}", "terminal", args),),
                      f"HOLD {goal.group(1)}")


def delegate(at: House, user: str, name: str, word: str, chat: str = "dm") -> list[Request]:
    """Somebody delegates; the child goes on when their own turn is over; the child's requests."""
    at.lab.model.requests.clear()
    goal = f"CHILD-{word} do it"
    at.lab.post(user, tool("delegate_task", {"goal": goal}), name, chat)
    def children() -> list[Request]:
        return [r for r in at.lab.turn_requests if "delegate_task" not in json.dumps(r["messages"])
                and goal in json.dumps(r["messages"])]
    wait_until(lambda: bool(children()), 30)
    at.lab.wait_idle(60)
    at.lab.model.release(word)
    wait_until(lambda: any("ASYNC DELEGATION" in json.dumps(r["messages"])
                           for r in at.lab.turn_requests), 60)
    at.lab.wait_idle(60)
    return children()


@scenario
def subagents_inherit(check: Check) -> None:
    """subagent_policy inherit: a child's calls are its causer's; guest: held and told why."""
    family = Family()
    with house({"subagent_policy": "inherit"}, model=FakeModel(family)) as at:
        family.target = target = at.lab.home.work / "children"
        at.join(MINH, "Minh")
        at.boss("tools Minh add delegate_task")
        a_members_child(check, at, target)
        delegate(at, OWNER, "Boss", "owners")
        check.equal("the owner's child runs terminal", read(target), "owners\n")
        target.unlink(missing_ok=True)
        at.lab.home.config["plugins"]["entries"]["manyhands"]["settings"] = {}
        at.lab.home.write()
        for user, name in ((OWNER, "Boss"), (MINH, "Minh")):
            before = len(prompts(at))
            seen = json.dumps(delegate(at, user, name, f"guest{user}"))
            check(f"by default {name}'s child is refused and the refusal names the setting",
                  "subagent_policy" in seen and read(target) == "", seen[-1500:])
            check.equal(f"and nobody is asked for {name}'s", len(prompts(at)), before)


def a_members_child(check: Check, at: House, target: Path) -> None:
    before = len(prompts(at))
    children = delegate(at, MINH, "Minh", "minhs")
    check("a member's child, after the member's turn has ended, is parked", read(target) == ""
          and ASKED in json.dumps(children), json.dumps(children)[-1500:])
    wait_until(lambda: len(prompts(at)) > before, 20)
    asked = (prompts(at)[before:] or [""])[0]
    check("in the member's name, via a subagent", "Minh" in asked
          and "via a subagent" in asked, at.lab.sent(OWNER)[-3:])
    system = system_of(children[0]) if children else ""
    check("the child's request has the member's card", "manyhands-card" in system
          and "Minh" in system, system[-1500:])
    check("and none of the operator's notes", "CANARY" not in json.dumps(children))
    back = [r for r in at.lab.turn_requests if "ASYNC DELEGATION" in json.dumps(r["messages"])]
    check("its result starts a turn of the member's", back and "Minh" in system_of(back[-1])
          and "CANARY" not in json.dumps(back), back and system_of(back[-1])[-900:])
    audit = pages(at, "audit Minh 1")
    check("the audit says so", "via a subagent" in audit, audit[:1500])
    at.boss(f"approve {code_in(asked)}")
    at.lab.wait_idle(60)


# -- code that calls tools -----------------------------------------------------------------------


def nested(path: Path, text: str) -> str:
    """Code that calls terminal from inside."""
    code = f"from hermes_tools import terminal\nprint(terminal('echo {text} >> {path}'))"
    return tool("execute_code", {"code": code})


@scenario
def nested_calls(check: Check) -> None:
    """A tool called from inside execute_code has its caller's rights, in a room the lowest."""
    off = {"approvals": {"mode": "off", "destructive_slash_confirm": False}}
    with house(group_sessions_per_user=False, config=off, env=NO_GRACE) as at:
        at.join(MINH, "Minh")
        at.boss("tools Minh add execute_code")
        target = at.lab.home.work / "nested"
        before = len(prompts(at))
        said = at.say(MINH, nested(target, "minh"), "Minh")
        check("a member's nested call does not run", read(target) == "", said)
        check("and says why", ASKED in said or "Nothing was run" in said, said)
        asked = wait_until(lambda: len(prompts(at)) > before, 20)
        check("it is parked in the member's name and says where it came from", asked
              and "execute_code" in prompts(at)[-1] and "Minh" in prompts(at)[-1],
              at.lab.sent(OWNER)[-2:])
        at.lab.wait_idle()
        said = at.say(OWNER, nested(target, "owner"), "Boss")
        check.equal("the owner's own nested call runs", read(target), "owner\n")
        said = at.say(OWNER, nested(target, "room"), "Boss", ROOM)
        check("also in a room where nobody else has run code", read(target).endswith("room\n"),
              said)
        at.say(MINH, tool("execute_code", {"code": "print(40 + 2)"}), "Minh", ROOM)
        said = at.say(OWNER, nested(target, "after"), "Boss", ROOM)
        check("after a member's code in that room the owner's nested call is refused",
              "after" not in read(target), said)
        at.say(OWNER, writes(target, "plain"), "Boss", ROOM)
        check("the owner's plain call is not", read(target).endswith("plain\n"), read(target))
        at.say(OWNER, "/new", "Boss", ROOM)
        said = at.say(OWNER, nested(target, "fresh"), "Boss", ROOM)
        check("in a new session with a kernel of its own it runs again",
              read(target).endswith("fresh\n"), said)


# -- background work and a provider's memory -----------------------------------------------------

_SUBJECT = re.compile(r"SUBJECT-(\w+)")


def reviewing(request: Request) -> Answer:
    """The script; the host's review of a conversation writes its last subject to the memory."""
    texts = [text_of(m.get("content")) for m in request.get("messages") or [{}]]
    if texts[-1].startswith("Review the conversation above"):
        subject = (_SUBJECT.findall(" ".join(texts)) or ["none"])[-1]
        args = {"action": "add", "target": "memory", "content": f"REVIEWED-{subject}"}
        return Answer("", (Call(f"review_{subject}", "memory", args),))
    if any(text.startswith("Review the conversation above") for text in texts):
        return Answer("done")
    return script(request)


@scenario
def background_reviews(check: Check) -> None:
    """The host's own review of a conversation has the rights of the one person in it."""
    intervals = {"memory": {"nudge_interval": 1}, "skills": {"creation_nudge_interval": 1}}
    with house(group_sessions_per_user=False, config=intervals, env=NO_GRACE,
               model=FakeModel(reviewing)) as at:
        at.join(MINH, "Minh")
        reviewed(check, at, MINH, "Minh", "dm", "MINH", writes_it=False)
        reviewed(check, at, OWNER, "Boss", "dm", "BOSS", writes_it=True)
        reviewed(check, at, MINH, "Minh", ROOM, "ROOMMINH", writes_it=False)
        reviewed(check, at, OWNER, "Boss", ROOM, "ROOMBOSS", writes_it=False)


def reviewed(check: Check, at: House, user: str, name: str, chat: str, subject: str, *,
             writes_it: bool) -> None:
    at.lab.model.requests.clear()
    at.say(user, f"SUBJECT-{subject} " + tool("manyhands_whoami") + " THEN "
           + tool("manyhands_whoami"), name, chat)
    def reviews() -> list[str]:
        texts = [json.dumps(r) for r in at.lab.model.requests]
        return [text for text in texts if "Review the conversation above" in text
                and f"SUBJECT-{subject}" in text]
    came = wait_until(lambda: any(f"review_{subject}" in text for text in reviews()), 30)
    at.lab.wait_idle()
    where = f"{name}'s conversation in {chat}"
    check(f"the host reviews {where}", came, [text[-300:] for text in reviews()])
    memory = read(at.lab.home.path / "memories" / "MEMORY.md")
    check.equal(f"whether the review of {where} may write the operator's notes",
                f"REVIEWED-{subject}" in memory, writes_it)
    if user != OWNER:
        check(f"the review of {where} reads none of them", not any(
            "CANARY" in text for text in reviews()), [
            text[max(0, text.find("CANARY") - 500):][:900] for text in reviews()])


@scenario
def recalled_memory_of_a_provider(check: Check) -> None:
    """An external memory provider's block and recall are in the owner's requests alone."""
    provider = {"memory": {"provider": "probe_memory"}}
    with house(group_sessions_per_user=False, config=provider, installed=[PROBE_MEMORY],
               env=NO_GRACE) as at:
        at.join(MINH, "Minh")
        at.join(KID, "Kid", "guest")
        for chat in ("dm", ROOM):
            at.lab.model.requests.clear()
            at.say(EVE, "hello there", "Eve", chat)
            check.equal(f"a stranger in {chat} costs no request", at.lab.model.requests, [])
            at.say(OWNER, "hello there", "Boss", chat)
            seen = json.dumps(at.last_request())
            check(f"the owner's request in {chat} has the provider's block and recall",
                  "PROVIDER-BLOCK" in seen and "PROVIDER-RECALL" in seen, seen[-1500:])
            for user, name in ((MINH, "Minh"), (KID, "Kid")):
                at.lab.model.requests.clear()
                at.say(user, "hello there " + tool("web_search", {"query": "x"}), name, chat)
                seen = json.dumps(at.lab.model.requests)
                check(f"{name}'s requests in {chat} have neither, nor the notes",
                      at.lab.turn_requests and "PROVIDER-" not in seen and "CANARY" not in seen
                      and "memory-context" not in seen, seen[-1500:])
                check(f"{name}'s own words are there", "hello there" in
                      user_texts(at.lab.turn_requests[0])[-1])
            at.say(OWNER, "me again", "Boss", chat)
            check(f"the owner's next request in {chat} has them again",
                  "PROVIDER-RECALL" in json.dumps(at.last_request()))
