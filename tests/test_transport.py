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
        self.assertEqual(self.notices(), [])

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


class BoundedGrants(ApprovalCase):
    def approved(self, terms: str, args: dict[str, Any] | None = None) -> str:
        return self.boss(f"approve {self.parked(args)} {terms}")

    def test_a_count_opens_so_many_runs(self):
        self.assertIn("3 times", self.approved("3x"))
        self.assertEqual([self.ask() for _ in range(3)], ["ran terminal"] * 3)
        self.assertIn("needs the owner's approval", self.ask())

    def test_a_time_opens_runs_until_it_is_over(self):
        self.assertIn("30 min", self.approved("30m"))
        self.assertEqual([self.ask() for _ in range(4)], ["ran terminal"] * 4)

    def test_other_arguments_need_any(self):
        self.approved("2x")
        self.assertIn("needs the owner's approval", self.ask({"command": "whoami"}))
        self.boss("revoke " + self.boss("grants").split("\n")[1].split()[0])
        self.assertIn("any arguments", self.boss(
            f"approve {self.code_of(self.notices()[-1])} 2x any"))
        self.assertEqual(self.ask({"command": "id"}), "ran terminal")

    def test_anything_else_behind_a_code_gets_the_usage_line_and_opens_nothing(self):
        code = self.parked()
        for words in ("always", "0x", "101x", "25h", "1441m", "3", "3x 4x", "30m 1h", "any any",
                      "-1x", "3X 5M any more", "99999m", "1.5h", "forever"):
            with self.subTest(words=words):
                said = self.boss(f"approve {code} {words}")
                self.assertNotIn("Approved", said)
                self.assertIn("Usage", said)
        self.assertIn("Approved", self.boss(f"approve {code} 24h 100x any"))

    def test_open_grants_are_listed_for_the_owner_and_for_the_person(self):
        self.approved("3x")
        listed = self.boss("grants")
        for word in ("Minh", "terminal", "3 times", "ls -la /srv"):
            self.assertIn(word, listed)
        self.assertIn("Approved: terminal 3 times", self.host.command("222", "whoami",
                                                                     name="Minh"))
        self.assertNotIn("Minh", self.host.command("222", "grants", name="Minh"))

    def test_a_revoked_grant_is_gone(self):
        self.approved("3x")
        code = self.boss("grants").split("\n")[1].split()[0]
        self.assertIn("Revoked", self.boss(f"revoke {code}"))
        self.assertIn("needs the owner's approval", self.ask())
        self.assertIn("Nothing open", self.boss(f"revoke {code}"))

    def test_an_invite_is_revoked_by_its_number(self):
        said = self.boss("invite member")
        code = next(w for w in said.split() if identity.looks_like_secret(w))
        number = self.boss("invites").split("\n")[1].split()[0]
        self.assertIn("revoked", self.boss(f"revoke {number}"))
        self.assertEqual(self.host.say("444", f"join {code}").reply, identity.WRONG_CODE)

    def test_every_change_of_standing_ends_it(self):
        for n, change in enumerate(("role {} guest", "tools {} ask x_search", "lockdown",
                                    "role {} blocked", "tools @member ask x_search")):
            with self.subTest(change=change):
                user, name = f"50{n}", f"M{n}"
                self.join(user, name)
                self.host.injected.clear()
                self.ask(user=user, name=name)
                code = self.code_of(next(t for t in self.notices() if "Approval " in t))
                self.assertIn("Approved", self.boss(f"approve {code} 100x any"))
                self.boss(change.format(name))
                self.boss(f"role {name} member")
                self.boss("resume")
                self.assertIn("No approval is open", self.boss("grants"))
                self.assertNotIn("ran ", self.ask(user=user, name=name))


class TheAskerHears(ApprovalCase):
    """The outcome in the chat it was asked in, and there the call once more."""

    def arrivals(self, tools: list[tuple[str, dict[str, Any]]] | None = None) -> list[Any]:
        waiting = [i for i in self.host.injected if i["origin"]["user_id"] == "222"]
        self.host.injected.clear()
        return [self.host._deliver_one(i["content"], i["origin"], tools) for i in waiting]

    def test_of_an_approval_and_the_agent_makes_the_call_again_by_itself(self):
        self.boss(f"approve {self.parked()}")
        told, resumed = self.arrivals([("terminal", LS)])
        self.assertIn("approved", told.reply)
        self.assertEqual(told.model_calls, 0)
        self.assertEqual(resumed.results, ["ran terminal"])
        asked = str(self.host.requests[-2]["messages"][-1])
        self.assertIn("Make that call again", asked)
        self.assertIn("ls -la /srv", asked)

    def test_of_a_denial_with_its_reason(self):
        self.boss(f"deny {self.parked()} not today")
        [told] = self.arrivals()
        self.assertIn("not today", told.reply)
        self.assertEqual(told.model_calls, 0)

    def test_only_the_outcome_when_resuming_is_off(self):
        self.host.config["resume_on_approve"] = False
        self.boss(f"approve {self.parked()}")
        self.assertEqual([t.model_calls for t in self.arrivals()], [0])

    def test_in_the_group_it_was_asked_in_and_as_the_asker_s_own_turn(self):
        self.join("333", "Lan")
        self.host.say("222", "x", name="Minh", chat="group:G1", shared=True,
                      tools=[("terminal", LS)])
        code = self.code_of(next(t for t in self.notices() if "Approval " in t))
        self.host.say("333", "meanwhile", name="Lan", chat="group:G1", shared=True)
        self.boss(f"approve {code}")
        self.assertEqual({i["origin"]["chat_id"] for i in self.host.injected}, {"G1"})
        _, resumed = self.arrivals([("terminal", LS)])
        self.assertEqual(resumed.results, ["ran terminal"])

    def test_when_the_message_was_queued_and_somebody_else_s_variables_were_bound(self):
        seen = SimpleNamespace(results=[], reply=None, model_calls=0)
        with self.host.bound(PLATFORM="telegram", USER_ID="111", CHAT_ID="G1", CHAT_TYPE="group"):
            self.host.run_turn(seen, session="s-telegram-group:G1", text="x",
                               platform="telegram", sender="222", tools=[("terminal", LS)])
        code = self.code_of(next(t for t in self.notices() if "Approval " in t))
        self.boss(f"deny {code}")
        origins = [i["origin"] for i in self.host.injected]
        self.assertEqual([(o["chat_id"], o["user_id"]) for o in origins], [("G1", "222")])

    def test_never_resumes_for_somebody_demoted_blocked_or_removed_meanwhile(self):
        for n, change in enumerate(("role Minh guest", "role Minh blocked", "lockdown",
                                    "tools Minh remove terminal")):
            with self.subTest(change=change):
                args = {"command": f"ls {n}"}
                code = self.parked(args)
                self.boss(f"approve {code}")
                self.boss(change)
                for turn in self.arrivals([("terminal", args)]):
                    self.assertEqual(turn.model_calls, 0)
                    self.assertNotIn("ran ", str(turn.results))
                self.boss("role Minh member")
                self.boss("tools Minh reset")
                self.boss("resume")
                self.host.injected.clear()

    def test_a_resumed_turn_is_not_another_person_s(self):
        self.join("333", "Lan")
        self.boss(f"approve {self.parked()}")
        resume = self.host.injected[-1]["content"]
        stolen = self.host.say("333", resume, name="Lan", tools=[("terminal", LS)])
        self.assertNotIn("ran ", stolen.results[0])
        self.assertNotIn("Make that call again", str(self.host.requests[-1]))

    def test_later_requests_say_that_it_was_made_again_and_keep_the_answer(self):
        self.boss(f"approve {self.parked()}")
        self.arrivals([("terminal", LS)])
        self.host.say("222", "thanks", name="Minh")
        text = str(self.host.requests[-1]["messages"])
        self.assertIn(prompt.RESUMED, text)
        self.assertNotIn("Make that call again", text)
        self.assertIn("ran terminal", text)

    def test_also_when_the_answer_was_typed_on_the_terminal(self):
        code = self.parked()
        local = self.start()
        local.terminal_command(f"approve {code}")
        self.assertEqual(local.injected, [])
        self.host.say("111", "hello", name="Boss")
        self.assertEqual(len([i for i in self.host.injected
                              if i["origin"]["user_id"] == "222"]), 2)


class TheRightPhone(ApprovalCase):
    def claimed_on(self, platform: str) -> None:
        self.boss(f"add {platform} U7 owner Deputy")

    def test_an_owner_on_a_platform_without_direct_ids_is_asked_once_a_chat_is_known(self):
        self.claimed_on("discord")
        self.ask()
        self.assertEqual({i["origin"]["platform"] for i in self.host.injected}, {"telegram"})
        self.host.injected.clear()
        with self.host.bound(PLATFORM="discord", USER_ID="U7", USER_NAME="Deputy",
                             CHAT_ID="D900", CHAT_TYPE="dm", THREAD_ID="T1"):
            self.host.run_turn(SimpleNamespace(results=[], reply=None, model_calls=0),
                               session="s-d", text="hi", platform="discord", sender="U7",
                               tools=[])
        self.ask({"command": "other"})
        origins = {i["origin"]["platform"]: i["origin"] for i in self.host.injected}
        self.assertEqual(origins["discord"]["chat_id"], "D900")
        self.assertEqual(origins["discord"]["thread_id"], "T1")

    def test_a_group_or_a_stale_chat_is_never_learned_as_an_owner_s(self):
        self.claimed_on("discord")
        for user, kind in (("U7", "group"), ("U8", "dm")):
            with self.host.bound(PLATFORM="discord", USER_ID=user, CHAT_ID="X1", CHAT_TYPE=kind):
                self.host.run_turn(SimpleNamespace(results=[], reply=None, model_calls=0),
                                   session="s-d", text="hi", platform="discord", sender="U7",
                                   tools=[])
        self.ask()
        self.assertEqual({i["origin"]["platform"] for i in self.host.injected}, {"telegram"})

    def test_a_notice_is_bound_to_its_chat(self):
        self.ask()
        text = self.host.injected[0]["content"]
        seen = self.host.say("111", text, name="Boss", chat="group:G1", shared=True)
        self.assertNotIn("Approval", seen.reply)
        self.assertIn("Approval", self.notices()[0])

    def test_an_undelivered_prompt_is_sent_again_on_the_next_call_and_shown_to_the_owner(self):
        self.ask()
        lost = self.host.injected.pop()
        store = plugin_module("store").Store(lambda: self.folder / "manyhands.db", clean=str)
        with store.transaction() as tx:
            tx._conn.execute("UPDATE notices SET made_at = made_at - 90, sent_at = sent_at - 90")
        store.close()
        self.assertIn("reached no owner's chat", self.boss("whoami"))
        self.ask()
        self.assertEqual(self.host.injected[0]["content"], lost["content"])
        self.assertIn("Approval", self.notices()[0])


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
    def render(self, args: dict[str, Any], tool: str = "terminal",
               binding: str = "arguments") -> str:
        arguments = transport.Arguments.of(args)
        row = {"code": "K7QD", "kind": "tool", "person_id": "telegram:222", "tool": tool,
               "args_json": arguments.text, "args_digest": arguments.digest, "differs": 0,
               "via": "", "binding": binding, "expires_at": 120.0}
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
        self.assertIn("the whole value has 100008, sha256 ", text)
        self.assertLess(len(text), 4096)
        self.assertIn("First read /many show K7QD", text)

    def test_a_long_value_hides_no_other_argument(self):
        text = self.render({"command": "echo " + "x" * 2000, "workdir": "/etc", "zz": "y" * 900,
                            "aa": "\n".join(f"line {n}" for n in range(400))})
        for line in ('| workdir = "/etc"', "| command = ", "| zz = ", "| aa = text of 400 lines:"):
            self.assertIn(line, text)
        self.assertLess(text.index("workdir"), text.index("command ="))
        self.assertLess(len(text), 3500)
        self.assertLess(text.count("\n"), 75)

    def test_two_calls_that_differ_never_look_the_same(self):
        self.assertNotEqual(self.render({"command": 'ls" x = "y'}),
                            self.render({'command = "ls" x': "y"}))

    def test_more_arguments_than_fit_are_said_to_be_there(self):
        text = self.render({f"argument_{n}": "v" * 100 for n in range(300)})
        self.assertIn("other arguments among them", text)
        self.assertIn("First read /many show K7QD", text)
        self.assertLess(len(text), 4096)

    def test_an_ordinary_link_is_no_hidden_character(self):
        text = self.render({"content": "see https://a.example and me@b.example\nnext line"})
        self.assertNotIn("Hidden characters", text)
        self.assertNotIn("Not all of it", text)

    def test_says_so_when_any_arguments_would_run(self):
        self.assertIn("ANY arguments", self.render({"a": "b"}, binding="tool"))
        self.assertNotIn("ANY arguments", self.render({"a": "b"}))

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
    """The host's approval request (seen on 0.22.2)."""

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

    def test_a_grant_for_any_arguments_answers_no_prompt_of_the_host(self):
        self.host.config["approval_binding"] = "tool"
        code = self.parked({"command": "ls"})
        self.boss(f"approve {code}")
        self.let_through({"command": "rm -rf /srv"})
        thread, box = self.present("rm -rf /srv")
        self.boss(f"deny {self.code_of(self.wait_for_prompt())}")
        thread.join(10)
        self.assertEqual(box, ["deny"])

    def test_a_grant_answers_one_prompt_and_not_the_next(self):
        args = {"command": "chmod -R 700 w"}
        self.boss(f"approve {self.parked(args)}")
        self.let_through(args)
        self.assertEqual(self.answer_of("chmod -R 700 w"), "once")
        self.assertEqual(self.answer_of("chmod -R 700 w"), "deny")

    def test_an_unmapped_call_of_the_same_command_makes_it_nobody_s(self):
        boss = self.host.say("111", "x", name="Boss")
        for turn_id in (boss.turn_id, "unmapped"):
            self.host.tool_call("terminal", {"command": "rm x"}, turn_id=turn_id,
                                session_id=boss.session_id, task_id=boss.session_id)
        self.assertEqual(self.answer_of("rm x"), "deny")

    def test_calls_of_a_turn_that_another_followed_are_over(self):
        boss = self.host.say("111", "x", name="Boss", chat="group:G1", shared=True)
        self.host.tool_call("terminal", {"command": "rm y"}, turn_id=boss.turn_id,
                            session_id=boss.session_id, task_id=boss.session_id)
        self.host.say("222", "y", name="Minh", chat="group:G1", shared=True)
        thread, _ = self.present("rm y")
        asked = self.wait_for_prompt()
        self.assertIn("unidentified", asked)
        self.boss(f"deny {self.code_of(asked)}")
        thread.join(10)

    def test_the_host_s_own_prompts_count_against_the_five_in_ten_minutes(self):
        seen = self.host.say("222", "x", name="Minh")
        self.boss("tools Minh add terminal")
        for n in range(6):
            self.host.tool_call("terminal", {"command": f"chmod {n}"}, turn_id=seen.turn_id,
                                session_id=seen.session_id, task_id=seen.session_id)
        self.host.injected.clear()
        for n in range(6):
            thread, _ = self.present(f"chmod {n}", timeout=60.0)
            if n < 5:
                self.boss(f"deny {self.code_of(self.wait_for_prompt())}")
            thread.join(10)
        self.assertFalse(thread.is_alive(), "the sixth was denied on the spot")
        self.assertEqual(self.notices(), [])

    def test_is_never_answered_after_the_host_s_own_timeout_even_when_the_store_is_busy(self):
        import sqlite3
        import time
        thread, box = self.present("chmod late", timeout=4.0)
        began = time.monotonic()
        self.wait_for_prompt()
        other = sqlite3.connect(self.folder / "manyhands.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        thread.join(20)
        took = time.monotonic() - began
        other.close()
        self.assertEqual(box, ["deny"])
        self.assertLess(took, 4.0)

    def let_through(self, args: dict[str, Any]) -> None:
        seen = self.host.say("222", "x", name="Minh")
        self.assertEqual(self.host.tool_call("terminal", args, turn_id=seen.turn_id,
                                             session_id=seen.session_id,
                                             task_id=seen.session_id), "ran terminal")

    def answer_of(self, command: str) -> Any:
        """The transport's answer when no owner says anything."""
        thread, box = self.present(command, timeout=3.0)
        thread.join(10)
        return box[0]

    def test_a_command_too_long_for_any_owner_is_denied_on_the_spot_and_not_kept(self):
        thread, box = self.present("x" * (transport.MAX_ASK_CHARS + 1), timeout=60.0)
        thread.join(10)
        self.assertEqual((box, self.notices()), (["deny"], []))

    def test_a_sixth_waiting_request_is_denied_on_the_spot(self):
        waiting, codes = [], []
        for n in range(5):
            waiting.append(self.present(f"chmod {n}", timeout=60.0)[0])
            codes.append(self.code_of(self.wait_for_prompt()))
        thread, box = self.present("chmod six", timeout=60.0)
        thread.join(5)
        self.assertEqual(box, ["deny"])
        for code in codes:
            self.boss(f"deny {code}")
        for other in waiting:
            other.join(10)
        self.assertFalse(any(other.is_alive() for other in waiting))

    def test_a_request_that_makes_no_sense_is_denied_and_not_raised(self):
        broken = Request(command=None, description=None, timeout_seconds="soon")
        with self.assertLogs("manyhands", "ERROR"):
            self.assertEqual(self.host.transports["manyhands"](broken), "deny")


if __name__ == "__main__":
    unittest.main()
