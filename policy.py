"""What each person may do: pure functions and values.

Owns the roles, the tool states, the rules in their order, who may type which `/many` verb, the
settings' meaning, and every refusal sentence. Does no I/O and reads no clock, environment or
logger: everything a decision depends on arrives in a `Standing`. The hooks and `/many why` build
the same `Standing`, so no rule lives outside this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from string import Template
from typing import NamedTuple


class Role(StrEnum):
    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"
    BLOCKED = "blocked"


class State(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class Mode(StrEnum):
    """One stored mode for the whole bot; the last of pause, lockdown, resume wins."""

    NORMAL = "normal"
    PAUSED = "paused"
    LOCKED = "locked"


class Effect(StrEnum):
    """What one line of a person's or a role's own tool list does."""

    ALLOW = "allow"
    ASK = "ask"
    REMOVE = "remove"


class Reason(StrEnum):
    """The rule that produced a decision."""

    OWNER = "owner"
    PAUSED = "paused"
    OWN_ALLOW = "own_allow"
    ROLE_LIST_ALLOW = "role_list_allow"
    ROLE_ALLOW = "role_allow"
    OWN_ASK = "own_ask"
    ROLE_LIST_ASK = "role_list_ask"
    ROLE_ASK = "role_ask"
    SETTING_ASK = "setting_ask"
    BLOCKED = "blocked"
    LOCKED = "locked"
    OVER_BUDGET = "over_budget"
    OWN_REMOVE = "own_remove"
    ROLE_LIST_REMOVE = "role_list_remove"
    MAY_NOT_ASK = "may_not_ask"
    ASKING_OFF = "asking_off"
    UNNAMED = "unnamed"
    UNIDENTIFIED = "unidentified"
    NOT_ON_ROSTER = "not_on_roster"
    SEVERAL = "several"


# -- tool names and buckets --------------------------------------------------------------------

# The host's own renamings (its model_tools maps the old names before any hook sees them). This is
# the whole canonical form: nothing is stripped, folded or normalised, so a look-alike of a named
# tool is another tool, which nobody named.
TOOL_ALIASES: Mapping[str, str] = {
    "process": "process_manage",
    "todo": "todo_list",
    "cronjob": "cronjob_manage",
}


def canonical_tool(name: str) -> str:
    """The name a tool is compared under: the host's current name for it."""
    return TOOL_ALIASES.get(name, name)


class Bucket(NamedTuple):
    """A set of tool names, exact ones apart from patterns with a trailing `*`."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Bucket:
        exact, prefixes = set(), []
        for name in names:
            if name.endswith("*"):
                prefixes.append(name[:-1])
            else:
                exact.add(canonical_tool(name))
        return cls(frozenset(exact), tuple(sorted(prefixes)))

    def holds(self, tool: str) -> bool:
        """Whether `tool`, under its canonical name, is one of them."""
        return tool in self.exact or (bool(self.prefixes) and tool.startswith(self.prefixes))

    def names(self) -> list[str]:
        """Every entry as an owner would type it, sorted."""
        return sorted([*self.exact, *(f"{prefix}*" for prefix in self.prefixes)])


NO_TOOLS = Bucket()


class ToolLists(NamedTuple):
    """One subject's own lines of `/many tools`: a person's, or a role's (`@member`, `@guest`)."""

    allow: Bucket = NO_TOOLS
    ask: Bucket = NO_TOOLS
    remove: Bucket = NO_TOOLS

    @classmethod
    def of(cls, rules: Iterable[tuple[str, str]]) -> ToolLists:
        """From (tool, effect) pairs; a line with an unknown effect removes."""
        by_effect: dict[Effect, list[str]] = {effect: [] for effect in Effect}
        for tool, effect in rules:
            known = effect in Effect.__members__.values()
            by_effect[Effect(effect) if known else Effect.REMOVE].append(tool)
        if not any(by_effect.values()):
            return NO_LISTS
        return cls(*(Bucket.of(by_effect[e]) for e in (Effect.ALLOW, Effect.ASK, Effect.REMOVE)))


NO_LISTS = ToolLists()

OUR_TOOLS = ("manyhands_whoami", "manyhands_people", "manyhands_remember", "manyhands_recall",
             "manyhands_share", "manyhands_audit")

# Tools that read the public world or only the person's own data.
MEMBER_ALLOW = Bucket.of((
    "web_search", "web_extract", "x_search", "clarify", "todo_list", "text_to_speech",
    "tool_search", "tool_describe", *OUR_TOOLS))
# Tools that act on the operator's machine, accounts or money. `vision_analyze` reads local paths.
MEMBER_ASK = Bucket.of((
    "terminal", "process_manage", "execute_code", "read_file", "search_files", "write_file",
    "patch", "browser_*", "vision_analyze", "video_analyze", "image_generate", "video_generate",
    "delegate_task", "computer_use", "mqtt_*"))
GUEST_ALLOW = Bucket.of((
    "web_search", "clarify", "tool_search", "tool_describe", "manyhands_whoami",
    "manyhands_remember", "manyhands_recall", "manyhands_audit"))

ALLOW_BUCKETS: Mapping[Role, Bucket] = {Role.MEMBER: MEMBER_ALLOW, Role.GUEST: GUEST_ALLOW}
ASK_BUCKETS: Mapping[Role, Bucket] = {Role.MEMBER: MEMBER_ASK}

MAX_TOOL_NAME = 128
_TOOL_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:")


def tool_pattern_problem(pattern: str) -> str | None:
    """What is wrong with a tool name or pattern an owner typed; None when it can be kept."""
    name = pattern.removesuffix("*")
    if not name:
        return "a bare * would name every tool; name the tools or a prefix such as browser_*"
    if "*" in name:
        return "a * may stand only at the end, as in browser_*"
    if len(pattern) > MAX_TOOL_NAME:
        return f"a tool's name has at most {MAX_TOOL_NAME} characters"
    if not _TOOL_CHARS.issuperset(name):
        return "a tool's name has only letters, digits and _ - . :"
    return None


# -- the decision ------------------------------------------------------------------------------


class Standing(NamedTuple):
    """All that a decision depends on.

    `may_ask` is False where nothing may be parked in anyone's name: an unidentified call, a turn
    with several speakers, background work. `approval_tools` is the setting of that name; None
    when it is unset. `on_roster` is False for a known account that is no longer anybody here.
    """

    role: Role
    own: ToolLists = NO_LISTS
    of_role: ToolLists = NO_LISTS
    mode: Mode = Mode.NORMAL
    over_budget: bool = False
    identified: bool = True
    may_ask: bool = True
    approval_tools: Bucket | None = None
    on_roster: bool = True


class Decision(NamedTuple):
    state: State
    reason: Reason


# Made once: a decision is made on every call of every tool.
_REFUSE: Mapping[Reason, Decision] = {reason: Decision(State.REFUSE, reason) for reason in Reason}
_ALLOW: Mapping[Reason, Decision] = {reason: Decision(State.ALLOW, reason) for reason in Reason}
_ASK: Mapping[Reason, Decision] = {reason: Decision(State.ASK, reason) for reason in Reason}
UNNAMED = _REFUSE[Reason.UNNAMED]


def strangers_may_nothing(who: Standing, tool: str) -> Decision | None:
    return None if who.on_roster else _REFUSE[Reason.NOT_ON_ROSTER]


def owner_may_everything(who: Standing, tool: str) -> Decision | None:
    return _ALLOW[Reason.OWNER] if who.role is Role.OWNER else None


def blocked_may_nothing(who: Standing, tool: str) -> Decision | None:
    return _REFUSE[Reason.BLOCKED] if who.role is Role.BLOCKED else None


def mode_decides(who: Standing, tool: str) -> Decision | None:
    """Locked stops every non-owner; paused frees those on the roster, never the unidentified."""
    if who.mode is Mode.LOCKED:
        return _REFUSE[Reason.LOCKED]
    if who.mode is Mode.PAUSED and who.identified:
        return _ALLOW[Reason.PAUSED]
    return None


def budget_decides(who: Standing, tool: str) -> Decision | None:
    return _REFUSE[Reason.OVER_BUDGET] if who.over_budget else None


def own_lists_decide(who: Standing, tool: str) -> Decision | None:
    """The person's own lines: removal wins over an allow, an allow over an ask."""
    if who.own is NO_LISTS:
        return None
    if who.own.remove.holds(tool):
        return _REFUSE[Reason.OWN_REMOVE]
    if who.own.allow.holds(tool):
        return _ALLOW[Reason.OWN_ALLOW]
    if who.own.ask.holds(tool):
        return _ask(who, Reason.OWN_ASK)
    return None


def role_lists_decide(who: Standing, tool: str) -> Decision | None:
    """The role's own lines, and `approval_tools`, which stands in the place of every ask list.

    An ask line takes the tool out of the built-in allow bucket; where the setting has replaced the
    line, nothing gives the tool back.
    """
    if who.of_role is NO_LISTS and who.approval_tools is None:
        return None
    if who.of_role.remove.holds(tool):
        return _REFUSE[Reason.ROLE_LIST_REMOVE]
    if who.of_role.allow.holds(tool):
        return _ALLOW[Reason.ROLE_LIST_ALLOW]
    if who.approval_tools is not None and who.approval_tools.holds(tool):
        return _ask(who, Reason.SETTING_ASK)
    if not who.of_role.ask.holds(tool):
        return None
    if who.approval_tools is not None:
        return _REFUSE[Reason.ASKING_OFF]
    return _ask(who, Reason.ROLE_LIST_ASK)


def role_buckets_decide(who: Standing, tool: str) -> Decision | None:
    """The built-in buckets; no rule names the tool when neither holds it."""
    if ALLOW_BUCKETS.get(who.role, NO_TOOLS).holds(tool):
        return _ALLOW[Reason.ROLE_ALLOW]
    if who.approval_tools is None and ASK_BUCKETS.get(who.role, NO_TOOLS).holds(tool):
        return _ask(who, Reason.ROLE_ASK)
    return None


Rule = Callable[[Standing, str], Decision | None]
RULES: tuple[Rule, ...] = (
    strangers_may_nothing, owner_may_everything, blocked_may_nothing, mode_decides, budget_decides,
    own_lists_decide, role_lists_decide, role_buckets_decide)


def decide(who: Standing, tool: str) -> Decision:
    """First rule with an opinion wins; a tool that no rule names is refused."""
    name = canonical_tool(tool)
    for rule in RULES:
        decision = rule(who, name)
        if decision is not None:
            return decision
    return UNNAMED


def decide_together(standings: Sequence[Standing], tool: str) -> Decision:
    """For a call in which several people have a hand: what each may run without asking.

    None of our own tools is: their answers are one person's.
    """
    decision = decide_all([who._replace(may_ask=False) for who in standings], tool)
    if decision.state is State.ALLOW and tool not in OUR_TOOLS:
        return decision
    return _REFUSE[Reason.SEVERAL]


_STRICTNESS = {State.ALLOW: 0, State.ASK: 1, State.REFUSE: 2}


def decide_all(standings: Iterable[Standing], tool: str) -> Decision:
    """The strictest of several people's decisions; nobody at all is refused."""
    decisions = [decide(who, tool) for who in standings]
    return max(decisions, key=lambda d: _STRICTNESS[d.state], default=UNNAMED)


def allowed_tools(who: Standing, known: Iterable[str]) -> list[str]:
    """Those of `known` that would run without asking, sorted."""
    return sorted({tool for tool in known if decide(who, tool).state is State.ALLOW})


def named_tools(who: Standing) -> dict[State, list[str]]:
    """Every name and pattern that some list gives this person, under the state it has now."""
    lists = (who.own.allow, who.own.ask, who.of_role.allow, who.of_role.ask,
             ALLOW_BUCKETS.get(who.role, NO_TOOLS), ASK_BUCKETS.get(who.role, NO_TOOLS),
             who.approval_tools or NO_TOOLS)
    names = {name for bucket in lists for name in bucket.names()}
    by_state: dict[State, list[str]] = {state: [] for state in State}
    for name in sorted(names):
        by_state[decide(who, name).state].append(name)
    return by_state


def _ask(who: Standing, reason: Reason) -> Decision:
    """An ask, unless nothing may be parked for this call or the setting lets nothing be asked."""
    if who.approval_tools is not None and who.approval_tools == NO_TOOLS:
        return _REFUSE[Reason.ASKING_OFF]
    if not (who.may_ask and who.identified):
        return _REFUSE[Reason.MAY_NOT_ASK]
    return _ASK[reason]


# -- verbs -------------------------------------------------------------------------------------

STRANGER_VERBS = frozenset({"help", "claim", "whoami"})
BLOCKED_VERBS = frozenset({"help", "whoami", "export", "forget"})
PERSON_VERBS = frozenset({"help", "whoami", "roster", "audit", "claim", "facts", "forget",
                          "export", "approve", "unshare"})
OWNER_VERBS = frozenset({"invite", "invites", "add", "role", "rename", "tools", "budget", "remove",
                         "pause", "lockdown", "resume", "show", "deny", "grants", "revoke",
                         "usage", "verify", "why"})
VERBS = PERSON_VERBS | OWNER_VERBS


def verbs_for(role: Role | None) -> frozenset[str]:
    """The `/many` verbs a role may type; None is somebody who is not on the roster."""
    if role is None:
        return STRANGER_VERBS
    return {Role.OWNER: VERBS, Role.BLOCKED: BLOCKED_VERBS}.get(role, PERSON_VERBS)


# The host's own slash commands that people may type. The others act on the whole bot, start turns
# under somebody else's name in a shared session, or answer the host's approval prompts.
_HARMLESS = frozenset({"start", "help", "commands", "whoami", "new", "reset", "stop", "status",
                       "cancel"})


HOST_REFUSED = "host-command"  # what is written after /many in the place of a refused one


def may_type_host_command(role: Role | None, command: str) -> bool:
    """Whether somebody of this role may use one of the host's own commands; None is a stranger."""
    if command == "many" or role is Role.OWNER:
        return True
    if role is None:
        return command == "start"
    return role is not Role.BLOCKED and command in _HARMLESS


def sees_house(role: Role | None) -> bool:
    """May read other people's trail, platform ids and the whole approval queue."""
    return role is Role.OWNER


def may_approve(role: Role | None) -> bool:
    return role is Role.OWNER


def may_unshare(role: Role | None, *, is_author: bool) -> bool:
    return role is Role.OWNER or is_author


def leaves_no_owner(old: Role, new: Role | None, *, owners: int) -> bool:
    """True when this change would take the last owner away; None is a removal."""
    return old is Role.OWNER and new is not Role.OWNER and owners <= 1


def is_new_owner(old: Role | None, new: Role) -> bool:
    """The other owners are told of one."""
    return new is Role.OWNER and old is not Role.OWNER


def is_governed(role: Role) -> bool:
    """False for those whose requests, tools and tokens are never limited."""
    return role is not Role.OWNER


GRANTABLE_BY_INVITE = frozenset({Role.MEMBER, Role.GUEST})
_RANK = {Role.BLOCKED: 0, Role.GUEST: 1, Role.MEMBER: 2, Role.OWNER: 3}


def is_raise(old: Role, new: Role) -> bool:
    """True when `new` gives more than `old`; an invite may raise a guest and lowers nobody."""
    return _RANK[new] > _RANK[old]


# -- sentences ---------------------------------------------------------------------------------

_NOT_YOURS = ("Refused: $tool is not among the tools that you can use here as a $role. Nothing was "
              "run. Say so plainly, don't try another way to the same end; the bot's owner can "
              "change what you may use. /many whoami lists your tools.")

# Keyed by reason; $tool, $role, $until and $why are filled in by `refusal`. The text for a tool
# that does not exist, one that was taken away and one that nobody named is the same on purpose.
REFUSALS: Mapping[Reason, Template] = {reason: Template(text) for reason, text in {
    Reason.BLOCKED: "Refused: this account is blocked here, so $tool was not run and nothing else "
                    "will be. Only the bot's owner can change that.",
    Reason.SEVERAL: "Refused: more than one person's words are in this turn, so it has only what "
                    "each of them may run without asking, and $tool is not part of that. Nothing "
                    "was run and nobody was asked. Ask for it again, as $a_role, in a message "
                    "of your own.",
    Reason.NOT_ON_ROSTER: "Refused: this account is not on this bot's roster, so $tool was not "
                          "run. The bot's owner can send an invite.",
    Reason.LOCKED: "Refused: the bot is in lockdown, in which a $role runs nothing, so $tool was "
                   "not run and nobody was asked. Try again when its owner has ended the lockdown.",
    Reason.OVER_BUDGET: "Refused: you are a $role here and today's token budget is used up, so "
                        "$tool was not run. It starts afresh $until.",
    Reason.OWN_REMOVE: _NOT_YOURS,
    Reason.ROLE_LIST_REMOVE: _NOT_YOURS,
    Reason.UNNAMED: _NOT_YOURS,
    Reason.MAY_NOT_ASK: "Refused: for a $role, $tool needs the owner's approval, and this call "
                        "cannot ask for it$why. Nothing was run and nobody was asked. Ask for it "
                        "again in a message of your own.",
    Reason.ASKING_OFF: "Refused: for a $role, $tool would need an approval, and approvals for it "
                       "are switched off on this bot. Nothing was run. Say so plainly; the bot's "
                       "owner can change what you may use.",
    Reason.UNIDENTIFIED: "Refused: this call of $tool carried no identity$why, so it was held to "
                         "what a $role may use, and $tool is not part of that. Nothing was run. "
                         "Ask for it again in a message of your own.",
}.items()}


def refusal(decision: Decision, who: Standing, *, tool: str, until: str = "", why: str = "") -> str:
    """The sentence for a refused call. `tool` arrives already shown; never an empty string.

    `until` says when a budget starts afresh ("at 00:00 UTC, in 3 h"); `why` is a clause that says
    why a call cannot be attributed.
    """
    reason = decision.reason
    if not who.identified and reason in (Reason.UNNAMED, Reason.ROLE_LIST_REMOVE):
        reason = Reason.UNIDENTIFIED
    clause = f" ({why})" if why else ""
    role = who.role.value
    return REFUSALS[reason].substitute(tool=tool, role=role, until=until, why=clause,
                                       a_role=f"an {role}" if role[0] in "aeiou" else f"a {role}")


EXPLANATIONS: Mapping[Reason, str] = {
    Reason.OWNER: "an owner may run everything",
    Reason.PAUSED: "the bot is paused, so people on the roster run every tool",
    Reason.OWN_ALLOW: "it is on this person's own allow list",
    Reason.ROLE_LIST_ALLOW: "it is on the role's allow list (tools @role add)",
    Reason.ROLE_ALLOW: "it is in the role's built-in allow bucket",
    Reason.OWN_ASK: "it is on this person's own ask list",
    Reason.ROLE_LIST_ASK: "it is on the role's ask list (tools @role ask)",
    Reason.ROLE_ASK: "it is in the role's built-in ask bucket",
    Reason.SETTING_ASK: "the setting approval_tools names it",
    Reason.BLOCKED: "this account is blocked, and a blocked account runs nothing",
    Reason.LOCKED: "the bot is in lockdown",
    Reason.OVER_BUDGET: "today's token budget is used up",
    Reason.OWN_REMOVE: "it was removed for this person, and a removal wins over every list",
    Reason.ROLE_LIST_REMOVE: "it was removed for the role (tools @role remove)",
    Reason.MAY_NOT_ASK: "it needs an approval, and this kind of call cannot ask",
    Reason.ASKING_OFF: "it needs an approval, and the setting approval_tools leaves it out",
    Reason.UNNAMED: "no list names it, and a tool that nobody named is refused",
    Reason.UNIDENTIFIED: "the call carried no identity",
    Reason.NOT_ON_ROSTER: "this account is not on the roster",
    Reason.SEVERAL: "several people's words are in the turn, and the lowest of their rights apply",
}


# -- settings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings, every value already valid. `_s` seconds, `_h` hours."""

    unknown_sender_policy: str = "invite"
    invite_role: Role = Role.MEMBER
    invite_ttl_h: float = 72
    unknown_session_policy: str = "guest"
    local_seat_policy: str = "operator"
    subagent_policy: str = "guest"
    db_path: str = ""
    approval_timeout_s: float = 120
    grant_ttl_s: float = 600
    approval_binding: str = "arguments"
    approval_tools: Bucket | None = None
    resume_on_approve: bool = True
    max_person_facts: int = 8
    max_shared_facts: int = 5
    scope_host_memory: bool = True
    audit_days: float = 0
    paused: bool = False
    problems: tuple[str, ...] = field(default=(), compare=False)


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "unknown_sender_policy": ("invite", "open", "closed"),
    "invite_role": ("member", "guest"),
    "unknown_session_policy": ("guest", "operator"),
    "local_seat_policy": ("operator", "roster"),
    "subagent_policy": ("guest", "inherit"),
    "approval_binding": ("arguments", "tool"),
}
# (smallest, largest) value that makes sense; anything outside falls back to the default.
_RANGES: Mapping[str, tuple[float, float]] = {
    "invite_ttl_h": (0.01, 24 * 365),
    "approval_timeout_s": (1, 24 * 3600),
    "grant_ttl_s": (1, 24 * 3600),
    "max_person_facts": (0, 50),
    "max_shared_facts": (0, 50),
    "audit_days": (0, 36500),
}
SETTING_NAMES: tuple[str, ...] = tuple(
    f.name for f in fields(Settings) if f.name != "problems")


def read_settings(raw: Mapping[str, object]) -> Settings:
    """Valid settings from what the operator wrote; each wrong value is named in `problems`.

    A key that is missing or None has its default. A wrong type, an unknown choice or a number
    out of range falls back to the safe default rather than to something near it.
    """
    values: dict[str, object] = {}
    problems: list[str] = []
    for spec in fields(Settings):
        given = raw.get(spec.name)
        if spec.name == "problems" or given is None:
            continue
        try:
            values[spec.name] = _valid_setting(spec.name, given)
        except ValueError as error:
            default = getattr(Settings(), spec.name)
            said = "unset" if default is None else repr(getattr(default, "value", default))
            problems.append(f"{spec.name}: {error}; the default ({said}) is used instead")
    return Settings(**values, problems=tuple(problems))  # type: ignore[arg-type]


def _valid_setting(name: str, given: object) -> object:
    if name in _CHOICES:
        if not isinstance(given, str) or given not in _CHOICES[name]:
            raise ValueError("must be one of " + ", ".join(_CHOICES[name]))
        return Role(given) if name == "invite_role" else given
    if name in _RANGES:
        return _valid_number(name, given)
    if name == "approval_tools":
        return _valid_tools(given)
    wanted = str if name == "db_path" else bool
    if not isinstance(given, wanted):
        raise ValueError("must be text" if wanted is str else "must be true or false")
    return given


def _valid_number(name: str, given: object) -> float:
    low, high = _RANGES[name]
    whole = name.startswith("max_")
    if isinstance(given, bool) or not isinstance(given, int if whole else (int, float)):
        raise ValueError("must be a whole number" if whole else "must be a number")
    if not low <= given <= high:
        raise ValueError(f"must be between {low:g} and {high:g}")
    return given


def _valid_tools(given: object) -> Bucket:
    if not isinstance(given, (list, tuple)) or not all(isinstance(n, str) for n in given):
        raise ValueError("must be a list of tool names")
    for name in given:
        problem = tool_pattern_problem(name)
        if problem is not None:
            raise ValueError(problem)
    return Bucket.of(given)
