"""What each person may do: every clause of the policy, walked whole where the domain is small."""

from __future__ import annotations

import ast
import functools
import itertools
import random
import sys
import unittest
from dataclasses import fields
from pathlib import Path

from support import ROOT, plugin_module

policy = plugin_module("policy")
Bucket, Decision, Mode, Reason = policy.Bucket, policy.Decision, policy.Mode, policy.Reason
Role, Standing, State, ToolLists = policy.Role, policy.Standing, policy.State, policy.ToolLists
decide = policy.decide

ALLOW, ASK, REFUSE = State.ALLOW, State.ASK, State.REFUSE
GOVERNED = (Role.MEMBER, Role.GUEST, Role.BLOCKED)

MEMBER_ALLOW = (
    "web_search", "web_extract", "x_search", "clarify", "todo_list", "todo", "text_to_speech",
    "tool_search", "tool_describe", "manyhands_whoami", "manyhands_people", "manyhands_remember",
    "manyhands_recall", "manyhands_share", "manyhands_audit")
MEMBER_ASK = (
    "terminal", "process_manage", "process", "execute_code", "read_file", "search_files",
    "write_file", "patch", "browser_navigate", "browser_click", "browser_", "vision_analyze",
    "video_analyze", "image_generate", "video_generate", "delegate_task", "computer_use",
    "mqtt_publish", "mqtt_subscribe")
GUEST_ALLOW = ("web_search", "clarify", "tool_search", "tool_describe", "manyhands_whoami",
               "manyhands_remember", "manyhands_recall", "manyhands_audit")
IN_NO_BUCKET = ("memory", "session_search", "skill_manage", "skill_view", "skills_list",
                "cronjob_manage", "cronjob", "recall_search", "send_message", "tool_call",
                "mcp__github__delete_repo", "next_years_tool", "manyhands_approve",
                "manyhands_", "manyhands", "execute", "browser", "mqtt", "*", "", " ", "many")
LOOK_ALIKES = tuple(
    made for name in ("terminal", "web_search", "manyhands_recall", "browser_navigate")
    for made in (
        name.title(), name.upper(), name.capitalize(), f"{name} ", f" {name}", f"{name}\n",
        f"{name}\u200b", f"\u200b{name}", f"{name}\x00", f"{name}\u00ad",
        name.replace("e", "\u0435"), name.replace("a", "\uff41"), name.replace("_", "-"),
        f"./{name}", f"{name}()", f"functions.{name}")
    if made != name)


@functools.cache
def lists(own: str = "", tool: str = "the_tool") -> object:
    """The lists that name `tool` under each of the effects in `own` (a, k for ask, r)."""
    effects = {"a": "allow", "k": "ask", "r": "remove"}
    return ToolLists(**{effects[letter]: Bucket.of([tool]) for letter in own})


SUBSETS = ["".join(s) for n in range(4) for s in itertools.combinations("akr", n)]


@functools.cache
def everybody() -> tuple[object, ...]:
    """Every standing there is, as far as one tool called `the_tool` is concerned."""
    tools = {None: None, "none": Bucket(), "it": Bucket.of(["the_tool"]),
             "other": Bucket.of(["other"])}
    return tuple(
        Standing(role, lists(own), lists(of_role), mode, over, identified, may_ask, setting, on)
        for role, own, of_role, mode, over, identified, may_ask, setting, on in itertools.product(
            Role, SUBSETS, SUBSETS, Mode, (False, True), (True, False), (True, False),
            tools.values(), (True, False)))


class Defaults(unittest.TestCase):
    """The table of defaults, by the host's names, old and new."""

    def assert_all(self, role, tools, state):
        for tool in tools:
            with self.subTest(role=role, tool=tool):
                self.assertIs(decide(Standing(role), tool).state, state)

    def test_a_member_runs_the_allow_bucket(self):
        self.assert_all(Role.MEMBER, MEMBER_ALLOW, ALLOW)

    def test_a_member_asks_for_what_acts_on_the_operators_machine(self):
        self.assert_all(Role.MEMBER, MEMBER_ASK, ASK)

    def test_a_guest_runs_a_small_bucket(self):
        self.assert_all(Role.GUEST, GUEST_ALLOW, ALLOW)

    def test_a_guest_is_refused_everything_else_and_never_asks(self):
        rest = (set(MEMBER_ALLOW) | set(MEMBER_ASK)) - set(GUEST_ALLOW)
        self.assert_all(Role.GUEST, sorted(rest), REFUSE)

    def test_what_is_in_no_bucket_is_refused_to_both(self):
        self.assert_all(Role.MEMBER, IN_NO_BUCKET, REFUSE)
        self.assert_all(Role.GUEST, IN_NO_BUCKET, REFUSE)

    def test_an_owner_runs_everything_and_a_blocked_account_nothing(self):
        everything = (*MEMBER_ALLOW, *MEMBER_ASK, *IN_NO_BUCKET, *LOOK_ALIKES)
        self.assert_all(Role.OWNER, everything, ALLOW)
        self.assert_all(Role.BLOCKED, everything, REFUSE)

    def test_an_old_and_a_new_name_are_one_tool_in_every_list(self):
        for old, new in (("process", "process_manage"), ("todo", "todo_list"),
                         ("cronjob", "cronjob_manage")):
            for effect, one, other in (("a", old, new), ("a", new, old), ("r", old, new),
                                       ("r", new, old), ("k", old, new), ("k", new, old)):
                with self.subTest(effect=effect, listed=one, called=other):
                    who = Standing(Role.MEMBER, lists(effect, one))
                    self.assertEqual(decide(who, other), decide(who, one))
                    self.assertTrue(decide(who, other).reason.startswith("own_"))

    def test_nothing_that_reads_the_operators_things_is_in_an_allow_bucket(self):
        private = {"read_file", "search_files", "memory", "session_search", "skills_list",
                   "skill_view", "skill_manage", "terminal", "execute_code", "process_manage",
                   "vision_analyze", "video_analyze"}
        for role in (Role.MEMBER, Role.GUEST):
            for tool in sorted(private):
                with self.subTest(role=role, tool=tool):
                    self.assertIsNot(decide(Standing(role), tool).state, ALLOW)


class Precedence(unittest.TestCase):
    """One oracle, written as a table, against the whole product of standings."""

    @staticmethod
    def expected(who, built_in):
        """(state, reason) by the words of the specification."""
        setting = who.approval_tools

        def asks(reason):
            if setting is not None and not setting.names():
                return REFUSE, Reason.ASKING_OFF
            if not who.may_ask or not who.identified:
                return REFUSE, Reason.MAY_NOT_ASK
            return ASK, reason

        def named(bucket):
            return bool(bucket.names())

        table = (
            (not who.on_roster, lambda: (REFUSE, Reason.NOT_ON_ROSTER)),
            (who.role is Role.OWNER, lambda: (ALLOW, Reason.OWNER)),
            (who.role is Role.BLOCKED, lambda: (REFUSE, Reason.BLOCKED)),
            (who.mode is Mode.LOCKED, lambda: (REFUSE, Reason.LOCKED)),
            (who.mode is Mode.PAUSED and who.identified, lambda: (ALLOW, Reason.PAUSED)),
            (who.over_budget, lambda: (REFUSE, Reason.OVER_BUDGET)),
            (named(who.own.remove), lambda: (REFUSE, Reason.OWN_REMOVE)),
            (named(who.own.allow), lambda: (ALLOW, Reason.OWN_ALLOW)),
            (named(who.own.ask), lambda: asks(Reason.OWN_ASK)),
            (named(who.of_role.remove), lambda: (REFUSE, Reason.ROLE_LIST_REMOVE)),
            (named(who.of_role.allow), lambda: (ALLOW, Reason.ROLE_LIST_ALLOW)),
            (setting == Bucket.of(["the_tool"]), lambda: asks(Reason.SETTING_ASK)),
            (named(who.of_role.ask) and setting is not None,
             lambda: (REFUSE, Reason.ASKING_OFF)),
            (named(who.of_role.ask), lambda: asks(Reason.ROLE_LIST_ASK)),
            (built_in == "allow", lambda: (ALLOW, Reason.ROLE_ALLOW)),
            (built_in == "ask" and setting is None, lambda: asks(Reason.ROLE_ASK)),
            (True, lambda: (REFUSE, Reason.UNNAMED)),
        )
        return next(answer for holds, answer in table if holds)()

    def test_every_standing_is_decided_by_the_first_clause_that_applies(self):
        wrong = [who for who in everybody()
                 if decide(who, "the_tool") != Decision(*self.expected(who, ""))]
        self.assertEqual(wrong[:1], [])

    def test_a_built_in_bucket_has_the_last_word_and_only_the_last(self):
        for tool, built_in in (("web_extract", "allow"), ("terminal", "ask")):
            names = {"the_tool": tool}
            wrong = []
            for who in everybody():
                if who.role is not Role.MEMBER:
                    continue
                moved = who._replace(
                    own=self.renamed(who.own, names), of_role=self.renamed(who.of_role, names),
                    approval_tools=None if who.approval_tools is None else Bucket.of(
                        names.get(n, n) for n in who.approval_tools.names()))
                if decide(moved, tool) != Decision(*self.expected(who, built_in)):
                    wrong.append(moved)
            self.assertEqual(wrong[:1], [])

    @staticmethod
    def renamed(given, names):
        return ToolLists(*(Bucket.of(names[n] for n in bucket.names())
                           for bucket in (given.allow, given.ask, given.remove)))

    def test_for_every_mix_of_lists_a_persons_own_removal_wins(self):
        for own, of_role, role in itertools.product(SUBSETS, SUBSETS, (Role.MEMBER, Role.GUEST)):
            if "r" in own:
                with self.subTest(own=own, of_role=of_role, role=role):
                    got = decide(Standing(role, lists(own), lists(of_role)), "the_tool")
                    self.assertEqual(got, Decision(REFUSE, Reason.OWN_REMOVE))

    def test_no_list_frees_a_blocked_account(self):
        for who in everybody():
            if who.role is Role.BLOCKED:
                self.assertIs(decide(who, "the_tool").state, REFUSE)

    def test_no_ask_stands_where_nothing_may_be_parked(self):
        for who in everybody():
            if not (who.may_ask and who.identified):
                self.assertIsNot(decide(who, "the_tool").state, ASK)

    def test_nobody_asks_where_the_setting_is_an_empty_list(self):
        for who in everybody():
            if who.approval_tools == Bucket():
                self.assertIsNot(decide(who, "the_tool").state, ASK)

    def test_one_more_removal_never_gives_more(self):
        order = (ALLOW, ASK, REFUSE)
        for who in everybody():
            if not who.own.remove.names():
                stricter = who._replace(own=who.own._replace(remove=Bucket.of(["the_tool"])))
                self.assertGreaterEqual(order.index(decide(stricter, "the_tool").state),
                                        order.index(decide(who, "the_tool").state))

    def test_a_decision_and_a_standing_cannot_be_changed(self):
        with self.assertRaises(AttributeError):
            decide(Standing(Role.GUEST), "x").state = ALLOW
        with self.assertRaises(AttributeError):
            Standing(Role.GUEST).role = Role.OWNER


class ApprovalTools(unittest.TestCase):
    def test_unset_leaves_the_built_in_ask_bucket(self):
        self.assertEqual(decide(Standing(Role.MEMBER), "terminal"), Decision(ASK, Reason.ROLE_ASK))

    def test_an_empty_list_lets_nothing_be_asked(self):
        who = Standing(Role.MEMBER, lists("k"), approval_tools=Bucket())
        for tool in (*MEMBER_ASK, "the_tool"):
            with self.subTest(tool=tool):
                self.assertIs(decide(who, tool).state, REFUSE)

    def test_a_list_replaces_the_ask_bucket_of_every_role(self):
        setting = Bucket.of(["patch", "mcp__home__*"])
        for role in (Role.MEMBER, Role.GUEST):
            who = Standing(role, approval_tools=setting)
            for tool, state in (("patch", ASK), ("mcp__home__light", ASK), ("terminal", REFUSE),
                                ("web_search", ALLOW)):
                with self.subTest(role=role, tool=tool):
                    self.assertIs(decide(who, tool).state, state)

    def test_a_persons_own_ask_line_outlives_the_replacement(self):
        who = Standing(Role.GUEST, lists("k"), approval_tools=Bucket.of(["patch"]))
        self.assertIs(decide(who, "the_tool").state, ASK)

    def test_a_replaced_ask_line_does_not_give_the_tool_back(self):
        """The role's line took it out of the allow bucket; switching asks off must not free it."""
        for setting in (Bucket(), Bucket.of(["patch"])):
            with self.subTest(setting=setting):
                who = Standing(Role.MEMBER, of_role=lists("k", "web_extract"),
                               approval_tools=setting)
                self.assertIs(decide(who, "web_extract").state, REFUSE)

    def test_an_owner_and_a_blocked_account_are_untouched_by_it(self):
        setting = Bucket.of(["terminal"])
        self.assertIs(decide(Standing(Role.OWNER, approval_tools=setting), "terminal").state, ALLOW)
        self.assertIs(decide(Standing(Role.BLOCKED, approval_tools=setting), "terminal").state,
                      REFUSE)


class Contract15WhitelistNotBlacklist(unittest.TestCase):
    """Whitelist, not blacklist."""

    def test_a_tool_nobody_named_is_refused_in_every_role_but_owner(self):
        draw = random.Random(15)
        names = ["".join(chr(draw.randrange(32, 0x2000)) for _ in range(draw.randrange(1, 30)))
                 for _ in range(3000)]
        for role in (Role.MEMBER, Role.GUEST):
            self.assertEqual({decide(Standing(role), n) for n in names}, {policy.UNNAMED})

    def test_a_look_alike_of_a_named_tool_is_another_tool(self):
        for tool in LOOK_ALIKES:
            for role in (Role.MEMBER, Role.GUEST):
                with self.subTest(role=role, tool=tool):
                    if role is Role.MEMBER and tool.startswith("browser_"):
                        continue  # a pattern's tail is free
                    self.assertEqual(decide(Standing(role), tool), policy.UNNAMED)

    def test_a_look_alike_of_a_tool_on_a_persons_own_list_is_another_tool(self):
        who = Standing(Role.GUEST, ToolLists.of([("terminal", "allow")]))
        self.assertIs(decide(who, "terminal").state, ALLOW)
        for tool in ("Terminal", "terminal ", "terminal\u200b", "\tterminal", "ter\u00adminal"):
            with self.subTest(tool=tool):
                self.assertEqual(decide(who, tool), policy.UNNAMED)

    def test_a_pattern_names_what_starts_with_it_exactly(self):
        who = Standing(Role.GUEST, ToolLists.of([("mcp__github__*", "allow")]))
        for tool, state in (("mcp__github__issue", ALLOW), ("mcp__github__", ALLOW),
                            ("mcp__github_", REFUSE), ("MCP__github__issue", REFUSE),
                            (" mcp__github__issue", REFUSE), ("mcp__gitlab__issue", REFUSE),
                            ("xmcp__github__issue", REFUSE)):
            with self.subTest(tool=tool):
                self.assertIs(decide(who, tool).state, state)

    def test_a_removed_pattern_beats_an_allowed_exact_name(self):
        who = Standing(Role.MEMBER, ToolLists.of([("web_*", "remove"), ("web_search", "allow")]))
        self.assertEqual(decide(who, "web_search"), Decision(REFUSE, Reason.OWN_REMOVE))

    def test_a_list_line_with_an_unknown_effect_removes(self):
        who = Standing(Role.MEMBER, ToolLists.of([("web_search", "alow")]))
        self.assertEqual(decide(who, "web_search"), Decision(REFUSE, Reason.OWN_REMOVE))

    def test_no_list_at_all_names_no_tool(self):
        self.assertFalse(Bucket.of([]).holds(""))
        self.assertFalse(policy.NO_TOOLS.holds("anything"))

    def test_a_bare_star_and_other_malformed_patterns_are_refused(self):
        for pattern in ("*", "", "**", "a*b", "*a", "a**", "a b", "ter\u200bminal", "\uff54erminal",
                        "a\n", "x" * 129, "x" * 128 + "*", "b\u00fccher", "a;b", "a,b"):
            with self.subTest(pattern=pattern):
                self.assertTrue(policy.tool_pattern_problem(pattern))

    def test_ordinary_names_and_prefixes_are_kept(self):
        for pattern in ("terminal", "browser_*", "mcp__github__*", "ns.tool", "a:b", "A-1", "x*",
                        "x" * 128):
            with self.subTest(pattern=pattern):
                self.assertIsNone(policy.tool_pattern_problem(pattern))

    def test_a_buckets_names_read_as_an_owner_would_type_them(self):
        names = ["b_tool", "a_*", "process"]
        self.assertEqual(Bucket.of(names).names(), ["a_*", "b_tool", "process_manage"])


class DecideAll(unittest.TestCase):
    def test_it_is_the_strictest_of_every_group(self):
        order = (ALLOW, ASK, REFUSE)
        people = {ALLOW: Standing(Role.OWNER), ASK: Standing(Role.MEMBER),
                  REFUSE: Standing(Role.GUEST)}
        for size in (1, 2, 3):
            for group in itertools.product(order, repeat=size):
                with self.subTest(group=group):
                    got = policy.decide_all([people[s] for s in group], "terminal")
                    self.assertIs(got.state, max(group, key=order.index))

    def test_nobody_at_all_is_refused(self):
        self.assertIs(policy.decide_all([], "web_search").state, REFUSE)


class Contract09TheOwnerCanAlwaysAct(unittest.TestCase):
    """The owner can always act, and can pause."""

    def test_an_owner_on_the_roster_is_allowed_in_every_standing(self):
        for who in everybody():
            if who.role is Role.OWNER and who.on_roster:
                self.assertEqual(decide(who, "the_tool"), Decision(ALLOW, Reason.OWNER))

    def test_a_pause_frees_people_and_neither_the_blocked_nor_the_unidentified(self):
        paused = {"mode": Mode.PAUSED}
        for role in (Role.MEMBER, Role.GUEST):
            self.assertIs(decide(Standing(role, lists("r"), **paused, over_budget=True),
                                 "the_tool").state, ALLOW)
        self.assertIs(decide(Standing(Role.BLOCKED, **paused), "web_search").state, REFUSE)
        unknown = Standing(Role.GUEST, **paused, identified=False, may_ask=False)
        self.assertIs(decide(unknown, "terminal").state, REFUSE)
        self.assertIs(decide(unknown, "web_search").state, ALLOW)

    def test_a_lockdown_stops_everybody_else(self):
        for who in everybody():
            if who.mode is Mode.LOCKED and who.role is not Role.OWNER:
                self.assertIs(decide(who, "the_tool").state, REFUSE)


class Contract02UnknownStateFailsClosed(unittest.TestCase):
    """Unknown state fails closed to the guest allowlist, and the refusal says so."""

    unknown = Standing(Role.GUEST, identified=False, may_ask=False)

    def test_an_unidentified_call_has_exactly_the_guest_allowlist(self):
        for tool in (*MEMBER_ALLOW, *MEMBER_ASK, *IN_NO_BUCKET, *LOOK_ALIKES):
            with self.subTest(tool=tool):
                self.assertIs(decide(self.unknown, tool).state,
                              ALLOW if tool in GUEST_ALLOW else REFUSE)

    def test_its_refusal_says_that_the_call_carried_no_identity(self):
        for tool in ("terminal", "nope", "memory"):
            text = policy.refusal(decide(self.unknown, tool), self.unknown, tool=tool,
                                  why="it named no session")
            with self.subTest(tool=tool):
                self.assertIn("carried no identity (it named no session)", text)
                self.assertIn("guest", text)


@functools.cache
def decided() -> dict[tuple[object, ...], tuple[object, object]]:
    """One standing and its decision for everything that a refusal's text can depend on."""
    found = {}
    for who in everybody():
        decision = decide(who, "the_tool")
        found.setdefault((who.role, who.on_roster, who.identified, decision), (who, decision))
    return found


class Contract04RefusalsDiscloseNothing(unittest.TestCase):
    """Refusals disclose nothing about anybody else."""

    def test_every_refusing_reason_has_one_row_and_no_other_reason_has_one(self):
        reasons = {decision.reason for _, decision in decided().values()
                   if decision.state is REFUSE}
        self.assertEqual(set(policy.REFUSALS), reasons | {Reason.UNIDENTIFIED, Reason.SEVERAL})

    def test_no_reason_is_both_refusing_and_not(self):
        freed = {decision.reason for _, decision in decided().values()
                 if decision.state is not REFUSE}
        self.assertEqual(freed & set(policy.REFUSALS), set())

    def texts(self):
        return {(who.role, who.on_roster, who.identified, decision.reason): policy.refusal(
                    decision, who, tool="the_tool", until="at 00:00 UTC")
                for who, decision in decided().values() if decision.state is REFUSE}

    def test_every_text_names_the_tool_and_says_that_nothing_ran(self):
        for key, text in self.texts().items():
            with self.subTest(key=key):
                self.assertIn("the_tool", text)
                self.assertRegex(text, r"was not run|[Nn]othing was run")

    def test_every_text_names_the_readers_own_role_and_no_other(self):
        for (role, on_roster, _, _), text in self.texts().items():
            with self.subTest(role=role, text=text):
                self.assertIn(role.value if on_roster else "not on this bot's roster", text)
                for other in (Role.MEMBER, Role.GUEST, Role.BLOCKED):
                    if other is not role:
                        self.assertNotIn(other.value, text)

    def test_every_text_says_what_comes_next(self):
        for key, text in self.texts().items():
            with self.subTest(key=key):
                self.assertRegex(text, r"owner can|[Tt]ry again|afresh|message of your own")

    def test_a_missing_and_a_forbidden_tool_read_the_same(self):
        for role in (Role.MEMBER, Role.GUEST):
            for identified in (True, False):
                standings = (
                    Standing(role, identified=identified),
                    Standing(role, of_role=ToolLists.of([("the_tool", "remove")]),
                             identified=identified))
                if identified:
                    standings += (Standing(role, ToolLists.of([("the_tool", "remove")])),)
                texts = {policy.refusal(decide(who, "the_tool"), who, tool="the_tool")
                         for who in standings}
                with self.subTest(role=role, identified=identified):
                    self.assertEqual(len(texts), 1)

    def test_a_tool_of_another_role_reads_like_one_that_does_not_exist(self):
        guest = Standing(Role.GUEST)
        for tool in ("terminal", "manyhands_share", "memory"):
            text = policy.refusal(decide(guest, tool), guest, tool="X")
            self.assertEqual(text, policy.refusal(decide(guest, "no_such_tool"), guest, tool="X"))

    def test_a_hostile_tool_name_is_not_read_as_a_template(self):
        who = Standing(Role.GUEST)
        text = policy.refusal(decide(who, "$role"), who, tool="$role ${until} $$ $")
        self.assertIn("$role ${until} $$ $", text)

    def test_no_text_is_empty_even_for_a_tool_without_a_name(self):
        for reason in policy.REFUSALS:
            with self.subTest(reason=reason):
                self.assertGreater(len(policy.refusal(
                    Decision(REFUSE, reason), Standing(Role.GUEST), tool="")), 40)


class Explanations(unittest.TestCase):
    def test_every_reason_is_explained(self):
        self.assertEqual(set(policy.EXPLANATIONS), set(Reason))
        self.assertTrue(all(policy.EXPLANATIONS.values()))

    def test_allowed_tools_are_those_that_would_run(self):
        self.assertEqual(policy.allowed_tools(Standing(Role.GUEST), (*MEMBER_ASK, *MEMBER_ALLOW)),
                         sorted(GUEST_ALLOW))

    def test_named_tools_stand_under_the_state_they_have_now(self):
        who = Standing(Role.MEMBER, ToolLists.of([("terminal", "allow"), ("web_search", "remove"),
                                                  ("mcp__a__*", "ask")]))
        named = policy.named_tools(who)
        self.assertIn("terminal", named[ALLOW])
        self.assertIn("web_search", named[REFUSE])
        self.assertLessEqual({"mcp__a__*", "browser_*", "patch"}, set(named[ASK]))


class Verbs(unittest.TestCase):
    stranger = frozenset({"help", "claim", "whoami"})
    blocked = frozenset({"help", "whoami", "export", "forget"})
    person = frozenset({"help", "whoami", "roster", "audit", "claim", "facts", "forget", "export",
                        "approve", "unshare"})
    owners_only = frozenset({"invite", "add", "role", "rename", "tools", "budget", "remove",
                             "pause", "lockdown", "resume", "show", "deny", "invites", "why"})

    def test_each_role_has_its_verbs(self):
        self.assertEqual(policy.verbs_for(None), self.stranger)
        self.assertEqual(policy.verbs_for(Role.BLOCKED), self.blocked)
        self.assertEqual(policy.verbs_for(Role.MEMBER), self.person)
        self.assertEqual(policy.verbs_for(Role.GUEST), self.person)

    def test_an_owner_has_every_verb(self):
        self.assertEqual(policy.verbs_for(Role.OWNER), policy.VERBS)
        self.assertLessEqual(self.person | self.owners_only, policy.VERBS)

    def test_what_is_the_owners_is_nobody_elses(self):
        only_owners = policy.VERBS - self.person
        for role in (None, *GOVERNED):
            with self.subTest(role=role):
                self.assertFalse(policy.verbs_for(role) & only_owners)

    def test_only_an_owner_sees_the_house_approves_and_is_ungoverned(self):
        for role in (None, *Role):
            with self.subTest(role=role):
                self.assertIs(policy.sees_house(role), role is Role.OWNER)
                self.assertIs(policy.may_approve(role), role is Role.OWNER)
                if role is not None:
                    self.assertIs(policy.is_governed(role), role is not Role.OWNER)

    def test_an_invite_grants_member_or_guest_and_only_raises(self):
        self.assertEqual(policy.GRANTABLE_BY_INVITE, {Role.MEMBER, Role.GUEST})
        order = (Role.BLOCKED, Role.GUEST, Role.MEMBER, Role.OWNER)
        for old, new in itertools.product(order, order):
            with self.subTest(old=old, new=new):
                self.assertIs(policy.is_raise(old, new), order.index(new) > order.index(old))


DEFAULTS = {
    "unknown_sender_policy": "invite", "invite_role": Role.MEMBER, "invite_ttl_h": 72,
    "unknown_session_policy": "guest", "local_seat_policy": "operator",
    "subagent_policy": "guest", "db_path": "", "approval_timeout_s": 120, "grant_ttl_s": 600,
    "approval_binding": "arguments", "approval_tools": None, "resume_on_approve": True,
    "max_person_facts": 8, "max_shared_facts": 5, "scope_host_memory": True, "audit_days": 0,
    "paused": False}
CHOICES = {
    "unknown_sender_policy": ("invite", "open", "closed"), "invite_role": ("member", "guest"),
    "unknown_session_policy": ("guest", "operator"),
    "local_seat_policy": ("operator", "roster"), "subagent_policy": ("guest", "inherit"),
    "approval_binding": ("arguments", "tool")}


class SettingsTable(unittest.TestCase):
    """The defaults, what is accepted, and what falls back."""

    numbers = ("invite_ttl_h", "approval_timeout_s", "grant_ttl_s", "audit_days")
    counts = ("max_person_facts", "max_shared_facts")
    switches = ("resume_on_approve", "scope_host_memory", "paused")

    def test_without_any_setting_the_defaults_hold(self):
        read = policy.read_settings({})
        self.assertEqual({n: getattr(read, n) for n in DEFAULTS}, DEFAULTS)
        self.assertEqual(read.problems, ())

    def test_the_names_are_those_of_the_specification(self):
        self.assertEqual(set(policy.SETTING_NAMES), set(DEFAULTS))
        self.assertEqual({f.name for f in fields(policy.Settings)}, {*DEFAULTS, "problems"})

    def test_an_unset_value_is_no_problem(self):
        read = policy.read_settings(dict.fromkeys(DEFAULTS))
        self.assertEqual(read, policy.Settings())
        self.assertEqual(read.problems, ())

    def test_a_key_that_is_no_setting_is_ignored(self):
        self.assertEqual(policy.read_settings({"nope": 1, "problems": ["x"]}).problems, ())

    def assert_falls_back(self, name, value):
        with self.subTest(name=name, value=value):
            read = policy.read_settings({name: value, "grant_ttl_s" if name != "grant_ttl_s"
                                         else "audit_days": 7})
            self.assertEqual(getattr(read, name), DEFAULTS[name])
            self.assertEqual(len(read.problems), 1)
            self.assertTrue(read.problems[0].startswith(name))
            self.assertEqual(read.grant_ttl_s if name != "grant_ttl_s" else read.audit_days, 7)

    def test_a_wrong_choice_falls_back_with_one_problem(self):
        for name, values in CHOICES.items():
            for bad in ("", "Invite", values[0].upper(), f"{values[0]} ", "owner", "blocked", 1,
                        0, True, False, [], [values[0]], {}, {"a": 1}, 1.5, b"invite"):
                self.assert_falls_back(name, bad)

    def test_a_valid_choice_is_taken(self):
        for name, values in CHOICES.items():
            for good in values:
                with self.subTest(name=name, value=good):
                    read = policy.read_settings({name: good})
                    self.assertEqual((getattr(read, name), read.problems), (good, ()))
        self.assertIs(policy.read_settings({"invite_role": "guest"}).invite_role, Role.GUEST)

    def test_a_wrong_number_falls_back_with_one_problem(self):
        for name in (*self.numbers, *self.counts):
            for bad in (float("nan"), float("inf"), float("-inf"), True, False, -1, -0.5, "120",
                        "", [], {}, 10 ** 400, -(10 ** 400), 1e300, 1j, b"1"):
                self.assert_falls_back(name, bad)
        for name in self.counts:
            self.assert_falls_back(name, 2.0)
            self.assert_falls_back(name, 51)
        for name in ("invite_ttl_h", "approval_timeout_s", "grant_ttl_s"):
            self.assert_falls_back(name, 0)

    def test_a_valid_number_is_taken(self):
        for name, values in {"invite_ttl_h": (1, 0.5, 8760), "approval_timeout_s": (1, 30.5),
                             "grant_ttl_s": (1, 86400), "audit_days": (0, 1, 0.5),
                             "max_person_facts": (0, 50), "max_shared_facts": (0, 1)}.items():
            for good in values:
                with self.subTest(name=name, value=good):
                    read = policy.read_settings({name: good})
                    self.assertEqual((getattr(read, name), read.problems), (good, ()))

    def test_a_switch_is_true_or_false_and_nothing_that_resembles_it(self):
        for name in self.switches:
            for bad in (1, 0, "true", "false", "yes", "", [], {}, 1.0):
                self.assert_falls_back(name, bad)
            for good in (True, False):
                with self.subTest(name=name, value=good):
                    self.assertIs(getattr(policy.read_settings({name: good}), name), good)

    def test_a_path_is_text(self):
        for bad in (1, True, [], {}, b"/x", Path("x")):
            self.assert_falls_back("db_path", bad)
        self.assertEqual(policy.read_settings({"db_path": "/x/y.db"}).db_path, "/x/y.db")

    def test_approval_tools_is_a_list_of_names_and_patterns(self):
        for bad in ("terminal", 1, True, {}, {"terminal": 1}, [1], [None], ["*"], [""],
                    ["terminal", "a b"], ["a*b"]):
            self.assert_falls_back("approval_tools", bad)
        for good in ([], ["terminal"], ("browser_*", "patch")):
            with self.subTest(value=good):
                read = policy.read_settings({"approval_tools": good})
                self.assertEqual((read.approval_tools, read.problems), (Bucket.of(good), ()))

    def test_every_wrong_value_has_a_problem_of_its_own(self):
        read = policy.read_settings(dict.fromkeys(DEFAULTS, object()))
        self.assertEqual(len(read.problems), len(DEFAULTS))
        self.assertEqual(read, policy.Settings())


# What each module may import of the package; the order is the direction.
MAY_IMPORT = {
    "policy": set(),
    "store": set(),
    "identity": {"policy", "store"},
    "prompt": {"policy"},
    "transport": {"policy", "store", "identity", "prompt"},
    "hooks": {"policy", "store", "identity", "prompt", "transport"},
    "tools": {"policy", "store", "identity", "prompt", "transport"},
    "commands": {"policy", "store", "identity", "prompt", "transport", "tools"},
}


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, int, bool], ...]:
    """(module, relative level, inside a function) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    nested = {id(node) for function in ast.walk(tree)
              if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
              for node in ast.walk(function) if node in imports}
    found = []
    for node in imports:
        if isinstance(node, ast.Import):
            found += [(alias.name, 0, id(node) in nested) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found += [(name, node.level, id(node) in nested) for name in names]
    return tuple(found)


class Imports(unittest.TestCase):
    modules = sorted(path for path in ROOT.glob("*.py"))

    def test_the_package_has_no_module_that_the_table_does_not_know(self):
        self.assertLessEqual({path.stem for path in self.modules}, {*MAY_IMPORT, "__init__"})

    def test_imports_point_up_the_table_only(self):
        for path in self.modules:
            for name, level, _ in imports_of(path):
                if level:
                    with self.subTest(module=path.stem, imports=name):
                        self.assertEqual(level, 1)
                        self.assertIn(name, MAY_IMPORT.get(path.stem, MAY_IMPORT.keys()))

    def test_nothing_else_is_imported_but_the_standard_library(self):
        for path in self.modules:
            for name, level, inside in imports_of(path):
                if not level and name.partition(".")[0] not in sys.stdlib_module_names:
                    with self.subTest(module=path.stem, imports=name):
                        self.assertEqual((name, inside), ("plugins.plugin_storage", True))

    def test_the_pure_modules_reach_no_clock_file_chance_or_logger(self):
        banned = {"time", "datetime", "secrets", "random", "os", "pathlib", "io", "logging",
                  "subprocess", "socket", "sqlite3"}
        for stem in ("policy", "prompt"):
            with self.subTest(module=stem):
                names = {name for name, _, _ in imports_of(ROOT / f"{stem}.py")}
                self.assertEqual(names & banned, set())

    def test_no_module_below_the_constructors_names_a_clock_or_a_source_of_chance(self):
        for path in self.modules:
            if path.stem != "__init__":
                with self.subTest(module=path.stem):
                    names = {name for name, _, _ in imports_of(path)}
                    self.assertEqual(names & {"time", "secrets", "random"}, set())


if __name__ == "__main__":
    unittest.main()
