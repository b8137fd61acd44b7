"""An ask's life, on the stand-in host and the real store."""

from __future__ import annotations

import threading
import unittest
from types import SimpleNamespace
from typing import Any

from support import plugin_module
from test_hooks import HouseCase

identity = plugin_module("identity")
transport = plugin_module("transport")
prompt = plugin_module("prompt")

LS = {"command": "ls -la /srv"}


class ApprovalCase(HouseCase):
    def setUp(self) -> None:
        super().setUp()
        self.join("222", "Minh")
        self.host.injected.clear()

    def ask(self, args: dict[str, Any] | None = None, tool: str = "terminal",
            user: str = "222", name: str = "Minh") -> str:
        return self.host.say(user, "x", name=name, tools=[(tool, args or LS)]).results[0]

    def parked(self, args: dict[str, Any] | None = None, tool: str = "terminal") -> str:
        """Ask and let the owner see it; the code."""
        self.ask(args, tool)
        return self.code_of(next(t for t in self.notices() if "Approval " in t))

    def boss(self, text: str, **kw: Any) -> str:
        return self.host.command("111", text, name="Boss", **kw)


class AnAsk(ApprovalCase):
    def test_is_parked_and_nothing_runs(self):
        said = self.ask()
        self.assertIn("needs the owner's approval", said)
        self.assertNotIn("terminal", [name for name, _ in self.host.ran])

    def test_reaches_the_owner_by_an_opaque_notice_and_no_model_reads_it(self):
        self.ask()
        self.assertEqual(len(self.host.injected), 1)
        notice = self.host.injected[0]
        self.assertEqual(notice["origin"]["user_id"], "111")
        for word in ("ls -la", "terminal", "Minh"):
            self.assertNotIn(word, notice["content"])
        before = len(self.host.requests)
        shown = self.notices()[0]
        self.assertEqual(len(self.host.requests), before)
        for word in ("ls -la /srv", "terminal", "Minh", "telegram:222", "/many approve "):
            self.assertIn(word, shown)

    def test_the_asker_s_own_text_carries_no_code(self):
        said = self.ask()
        self.assertNotIn(self.code_of(self.notices()[0]), said)

    def test_approval_opens_one_run_of_exactly_that_call(self):
        code = self.parked()
        self.assertIn("Approved", self.boss(f"approve {code}"))
        self.assertIn("needs the owner's approval", self.ask({"command": "ls -la /etc"}))
        self.assertEqual(self.ask(), "ran terminal")
        self.assertIn("needs the owner's approval", self.ask())
        self.assertEqual([name for name, _ in self.host.ran].count("terminal"), 1)

    def test_a_call_with_other_arguments_says_that_it_differs(self):
        code = self.parked()
        self.boss(f"approve {code}")
        self.ask({"command": "ls -la /etc"})
        self.assertIn("differs from what was approved", self.notices()[0])

    def test_the_same_call_again_keeps_its_code_and_sends_nothing(self):
        code = self.parked()
        self.assertIn("still waiting", self.ask({"command": LS["command"]}))
        self.assertEqual(self.host.injected, [])
        self.assertIn("Approved", self.boss(f"approve {code}"))

    def test_other_arguments_supersede_the_open_ask(self):
        first = self.parked()
        self.ask({"command": "whoami"})
        second = self.code_of(self.notices()[0])
        self.assertNotEqual(first, second)
        self.assertIn("replaced", self.boss(f"approve {first}"))
        self.boss(f"approve {second}")
        self.assertIn("needs the owner's approval", self.ask())

    def test_a_denial_is_told_with_its_reason_and_stands(self):
        code = self.parked()
        self.assertIn("Denied", self.boss(f"deny {code} not on a school night"))
        said = self.ask()
        self.assertIn("not on a school night", said)
        self.assertEqual(self.host.injected, [])

    def test_an_expired_code_is_never_consent(self):
        self.host.config["approval_timeout_s"] = 1
        code = self.parked()
        threading.Event().wait(1.1)
        self.assertIn("expired", self.boss(f"approve {code}"))
        self.assertIn("needs the owner's approval", self.ask())

    def test_nobody_approves_their_own(self):
        code = self.parked()
        self.host.command("222", f"approve {code}", name="Minh")
        self.boss("role Minh owner")
        self.assertNotIn("Approved", self.host.command("222", f"approve {code}", name="Minh"))
        self.assertNotIn("terminal", [name for name, _ in self.host.ran])

    def test_the_owner_hears_when_somebody_else_tries_a_code(self):
        code = self.parked()
        self.host.command("222", f"approve {code}", name="Minh")
        self.host.say("222", "hi", name="Minh")
        self.assertTrue(any("tried to answer" in text for text in self.notices()))

    def test_an_answered_code_says_how_it_ended(self):
        code = self.parked()
        self.boss(f"approve {code}")
        self.assertIn("already approved", self.boss(f"approve {code}"))
        self.assertIn("already approved", self.boss(f"deny {code}"))

    def test_a_code_or_a_yes_in_plain_chat_decides_nothing(self):
        code = self.parked()
        for text in ("yes", code, f"approve {code}", "ok, approved"):
            self.host.say("111", text, name="Boss")
        self.assertIn("still waiting", self.ask())

    def test_no_owner_within_reach_is_a_plain_denial(self):
        self.host.injects = False
        said = self.ask()
        self.assertIn("no owner could be reached", said)
        self.host.injects = True
        self.assertIn("just been asked", self.ask(), "nothing was left waiting")

    def test_the_sixth_prompt_in_ten_minutes_is_refused_with_a_time(self):
        for n in range(5):
            self.ask({"command": f"ls {n}"})
        said = self.ask({"command": "ls 6"})
        self.assertIn("Try again in", said)
        self.assertEqual(len(self.host.injected), 5)

    def test_the_terminal_can_answer_too(self):
        code = self.parked()
        local = self.start()
        self.assertIn("Approved", local.terminal_command(f"approve {code}"))
        self.assertEqual(self.ask(), "ran terminal")

    def test_a_change_of_role_tools_or_mode_ends_grants_at_once(self):
        for n, change in enumerate(("tools Minh add web_fetch", "role Minh guest", "lockdown")):
            with self.subTest(change=change):
                self.boss("resume")
                self.boss("role Minh member")
                args = {"command": f"ls {n}"}
                code = self.parked(args)
                self.boss(f"approve {code}")
                self.boss(change)
                self.boss("resume")
                self.boss("role Minh member")
                self.assertNotEqual(self.ask(args), "ran terminal")

    def test_binding_to_the_tool_alone_lets_other_arguments_spend_it(self):
        self.host.config["approval_binding"] = "tool"
        code = self.parked()
        self.boss(f"approve {code}")
        self.assertEqual(self.ask({"command": "whoami"}), "ran terminal")
        self.assertIn("needs the owner's approval", self.ask({"command": "whoami"}))

    def test_a_grant_ends_with_the_person(self):
        code = self.parked()
        self.boss(f"approve {code}")
        self.boss("remove Minh")
        self.join("222", "Minh")
        self.assertIn("needs the owner's approval", self.ask())

    def test_two_owners_are_both_asked_and_the_first_answer_wins(self):
        self.join("112", "Second")
        self.boss("role Second owner")
        self.host.deliver()
        self.ask()
        prompts = self.notices()
        self.assertEqual(len(prompts), 2)
        code = self.code_of(prompts[0])
        self.assertIn("Denied", self.host.command("112", f"deny {code}", name="Second"))
        self.assertIn("already denied", self.boss(f"approve {code}"))
        self.assertIn("Second", self.boss(f"approve {code}"))


class ANotice(ApprovalCase):
    def test_is_used_once_and_only_by_its_own_account(self):
        self.ask()
        text = self.host.injected[0]["content"]
        stolen = self.host.say("222", text, name="Minh")
        self.assertEqual(stolen.reply, f"ECHO: {text}")
        self.assertIn("Approval", self.notices()[0])
        self.assertEqual(self.host.say("111", text, name="Boss").reply, f"ECHO: {text}")

    def test_words_with_an_unknown_nonce_are_somebody_typing(self):
        text = prompt.notice_text("0" * 32)
        self.assertEqual(self.host.say("111", text, name="Boss").reply, f"ECHO: {text}")

    def test_later_requests_of_that_chat_carry_a_stand_in_also_after_a_restart(self):
        self.ask()
        self.notices()
        self.host.say("111", "and now?", name="Boss")
        self.assertNotIn("ls -la", str(self.host.requests[-1]))
        again = self.start()
        again.histories = self.host.histories
        again.say("111", "and now?", name="Boss")
        self.assertNotIn("ls -la", str(again.requests[-1]))


class APrompt(unittest.TestCase):
    def render(self, args: dict[str, Any], tool: str = "terminal") -> str:
        arguments = transport.Arguments.of(args)
        row = {"code": "K7QD", "kind": "tool", "person_id": "telegram:222", "tool": tool,
               "args_json": arguments.text, "args_digest": arguments.digest, "differs": 0,
               "expires_at": 120.0}
        return str(transport.render_prompt(row, name="Minh", mode=plugin_module("policy").Mode(
            "normal"), now=0.0))

    def test_shows_a_plain_command_verbatim(self):
        self.assertIn('| command = "rm -rf /tmp/x | tee \\"y\\""',
                      self.render({"command": 'rm -rf /tmp/x | tee \\"y\\"'}))

    def test_says_that_hidden_characters_are_present_and_spells_them(self):
        text = self.render({"command": "ls \u202egpj.exe\u200b"})
        self.assertIn("\\u{202e}", text)
        self.assertIn("Hidden characters are present", text)
        self.assertNotIn("\u202e", text)

    def test_puts_a_margin_before_every_untrusted_line(self):
        forged = "x\n```\nApproved: /many approve AAAA\nOpen for 99 h."
        text = self.render({"content": forged, "na\nme": "v", "`": "@all http://x"}, "te\nrm")
        inside = text.split("```")[1]
        for line in inside.strip().split("\n"):
            self.assertTrue(line.startswith("| "), line)
        self.assertEqual(text.count("```"), 2)
        self.assertNotIn("@all", text)
        self.assertNotIn("http://", text)

    def test_shows_head_and_tail_length_and_digest_of_what_is_long(self):
        text = self.render({"content": "HEAD" + "x" * 100_000 + "TAIL"})
        self.assertIn("HEAD", text)
        self.assertIn("TAIL", text)
        self.assertIn("characters left out of", text)
        self.assertLess(len(text), 4096)

    def test_warns_what_allowing_code_means(self):
        self.assertIn("allows everything", self.render({"code": "1"}, "execute_code"))


class CanonicalArguments(unittest.TestCase):
    def test_key_order_does_not_matter_and_types_do(self):
        of = transport.Arguments.of
        self.assertEqual(of({"a": 1, "b": 2}), of({"b": 2, "a": 1}))
        values = [{"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": None}, {}, {"a": [1]},
                  {"a": {"1": 1}}, {"a": "1 "}, {"a": float("nan")}, {"a": b"1"}, {1: 1},
                  {"1": 1}, {"a": "\ud800"}]
        self.assertEqual(len({of(v).digest for v in values}), len(values))


class Request(SimpleNamespace):
    """The host's approval request (HOST.md, approvals)."""

    def respond(self, choice: str) -> str:
        return choice


class TheHostTransport(ApprovalCase):
    def request(self, command: str, timeout: float = 6.0) -> Request:
        return Request(request_id="r1", digest="d", command=command, description="recursive",
                       pattern_key="p", pattern_keys=("p",), surface="gateway",
                       timeout_seconds=timeout, allowed_choices=("once", "deny"))

    def present(self, command: str, **kw: Any) -> tuple[threading.Thread, list[Any]]:
        """Run it as the host does: on a plain thread, with no context."""
        box: list[Any] = []
        def run() -> None:
            try:
                box.append(self.host.transports["manyhands"](self.request(command, **kw)))
            except BaseException as error:
                box.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        return thread, box

    def wait_for_prompt(self) -> str:
        for _ in range(200):
            replies = [text for text in self.notices() if "Approval" in text]
            if replies:
                return replies[0]
            threading.Event().wait(0.02)
        raise AssertionError("no prompt arrived")

    def test_a_member_s_prompt_goes_to_the_owner_and_is_answered_once(self):
        seen = self.host.say("222", "x", name="Minh")
        self.boss("tools Minh add terminal")
        self.host.tool_call("terminal", {"command": "chmod -R 777 x"}, turn_id=seen.turn_id,
                            session_id=seen.session_id, task_id=seen.session_id)
        thread, box = self.present("chmod -R 777 x")
        shown = self.wait_for_prompt()
        self.assertIn("Minh", shown)
        self.assertIn("chmod -R 777 x", shown)
        self.boss(f"approve {self.code_of(shown)}")
        thread.join(10)
        self.assertEqual(box, ["once"])

    def test_an_unidentified_request_says_so_and_a_denial_denies(self):
        thread, box = self.present("chmod -R 777 y")
        shown = self.wait_for_prompt()
        self.assertIn("unidentified", shown)
        self.boss(f"deny {self.code_of(shown)}")
        thread.join(10)
        self.assertEqual(box, ["deny"])

    def test_no_answer_in_time_is_a_deny_before_the_host_s_own_timeout(self):
        thread, box = self.present("chmod -R 777 z", timeout=3.0)
        thread.join(2.9)
        self.assertEqual(box, ["deny"])

    def test_no_owner_within_reach_is_a_deny_at_once(self):
        self.host.injects = False
        thread, box = self.present("chmod", timeout=300.0)
        thread.join(10)
        self.assertEqual(box, ["deny"])

    def test_the_owner_s_own_call_in_a_direct_chat_is_handed_back(self):
        seen = self.host.say("111", "x", name="Boss")
        self.host.tool_call("terminal", {"command": "chmod own"}, turn_id=seen.turn_id,
                            session_id=seen.session_id, task_id=seen.session_id)
        thread, box = self.present("chmod own")
        thread.join(10)
        self.assertIsInstance(box[0], transport.HandBack)

    def test_the_owner_s_own_call_in_a_room_is_denied(self):
        seen = self.host.say("111", "x", name="Boss", chat="group:G1", shared=True)
        self.host.tool_call("terminal", {"command": "chmod own"}, turn_id=seen.turn_id,
                            session_id=seen.session_id, task_id=seen.session_id)
        thread, box = self.present("chmod own")
        thread.join(10)
        self.assertEqual(box, ["deny"])

    def test_a_call_that_a_grant_let_through_needs_no_second_prompt(self):
        args = {"command": "chmod -R 700 w"}
        code = self.parked(args)
        self.boss(f"approve {code}")
        seen = self.host.say("222", "x", name="Minh")
        self.assertEqual(self.host.tool_call("terminal", args, turn_id=seen.turn_id,
                                             session_id=seen.session_id,
                                             task_id=seen.session_id), "ran terminal")
        thread, box = self.present("chmod -R 700 w")
        thread.join(10)
        self.assertEqual(box, ["once"])

    def test_a_sixth_waiting_request_is_denied_on_the_spot(self):
        waiting = [self.present(f"chmod {n}", timeout=8.0) for n in range(5)]
        for _ in range(5):
            self.wait_for_prompt_or_none()
        thread, box = self.present("chmod six", timeout=300.0)
        thread.join(5)
        self.assertEqual(box, ["deny"])
        for other, _ in waiting:
            other.join(10)

    def wait_for_prompt_or_none(self) -> None:
        for _ in range(50):
            if self.host.injected:
                self.notices()
                return
            threading.Event().wait(0.02)

    def test_a_request_that_makes_no_sense_is_denied_and_not_raised(self):
        broken = Request(command=None, description=None, timeout_seconds="soon")
        with self.assertLogs("manyhands", "ERROR"):
            self.assertEqual(self.host.transports["manyhands"](broken), "deny")


if __name__ == "__main__":
    unittest.main()
