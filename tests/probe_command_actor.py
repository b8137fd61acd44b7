"""Identity attacks on `/many`: does a command belong to the sender the platform names?

    python3 tests/probe_command_actor.py [DIR]

Runs against this tree or the checkout in DIR, through `register(ctx)` and what it registers only.
Prints one line an attack and exits 1 if any got through.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from support import StandInHost, probe

OWNER, MEMBER, STRANGER = "111", "222", "999"
UNSET = object()  # the host keeps a private object in a variable that was never set


class Attack:
    """A house with an owner and a member, and one check that holds when the attack failed."""

    def __init__(self, root: Path, folder: Path, contract: str) -> None:
        self.host = StandInHost({"db_path": str(folder / "probe.db")}, contract=contract,
                                root=root, package=f"probed_{contract.replace('.', '_')}")
        self.host.command("0", "help")  # this process is a gateway's from its first command on
        terminal = StandInHost({"db_path": str(folder / "probe.db")}, root=root,
                               package=f"probed_{contract.replace('.', '_')}")
        said = terminal.terminal_command("claim")
        for word in said.replace("`", " ").split():
            if "owner" in self.host.command(OWNER, f"claim {word}", name="Boss") and \
                    self.is_locked_after(OWNER):
                break
        self.host.command(OWNER, f"add telegram {MEMBER} member Minh", name="Boss")

    def is_locked_after(self, user: str, bind: dict[str, str] | None = None,
                        verb: str = "lockdown") -> bool:
        """Type an owner's verb as `user`; True when it took effect. Ends the lockdown again."""
        self.host.command(user, verb, bind=bind)
        locked = "lockdown" in self.host.say(
            MEMBER, "x", name="Minh", tools=[("web_search", {"q": "x"})]).results[0] \
            if self.host.say(MEMBER, "hi", name="Minh").model_calls else False
        self.host.command(OWNER, "resume", name="Boss")
        return locked

    def typed_raw(self, run: Callable[[], object]) -> bool:
        """Run something that might lock the bot; True when it did."""
        run()
        seen = self.host.say(MEMBER, "x", name="Minh", tools=[("web_search", {"q": "x"})])
        locked = bool(seen.results) and "lockdown" in seen.results[0]
        self.host.command(OWNER, "resume", name="Boss")
        return locked


def owner_bind(**changed: str) -> dict[str, str]:
    place = {"PLATFORM": "telegram", "USER_ID": OWNER, "USER_NAME": "Boss", "CHAT_ID": OWNER,
             "CHAT_TYPE": "dm"}
    return {**place, **changed}


def attacks(at: Attack) -> list[tuple[str, bool]]:
    """(what was tried, got through) for each attack, and one control that must get through."""
    host, many = at.host, at.host.commands["many"]

    def in_empty_context() -> object:
        return contextvars.Context().run(lambda: many("lockdown"))

    def with_source(**source: object) -> Callable[[], object]:
        def run() -> object:
            try:
                return many("lockdown", source=SimpleNamespace(**source))
            except TypeError:
                return None  # this handler takes no source
        return run

    return [
        ("control: the owner's own lockdown takes effect",
         not at.is_locked_after(OWNER)),
        ("a stranger types lockdown inside the owner's own chat",
         at.is_locked_after(STRANGER, owner_bind(USER_ID=STRANGER))),
        ("a member types lockdown inside the owner's own chat",
         at.is_locked_after(MEMBER, owner_bind(USER_ID=MEMBER))),
        ("a stranger takes the owner's display name",
         at.is_locked_after(STRANGER, owner_bind(USER_ID=STRANGER, USER_NAME="Boss"))),
        ("a platform without a user id", at.is_locked_after("", owner_bind(USER_ID=""))),
        ("no identity at all, in a gateway's process", at.typed_raw(in_empty_context)),
        ("the owner's id on another platform",
         at.is_locked_after(OWNER, owner_bind(PLATFORM="discord"))),
        ("an id that begins with the owner's", at.is_locked_after(OWNER + "0", owner_bind(
            USER_ID=OWNER + "0"))),
        ("the owner's id with a blank", at.is_locked_after(OWNER + " ", owner_bind(
            USER_ID=OWNER + " "))),
        ("a look-alike of the terminal's subject on a chat platform",
         at.is_locked_after("uid:0", owner_bind(USER_ID="uid:0"))),
        ("a second verb after a line break, by a member",
         at.is_locked_after(MEMBER, owner_bind(USER_ID=MEMBER), verb="help\nlockdown")),
        ("a second verb after a semicolon, by a member",
         at.is_locked_after(MEMBER, owner_bind(USER_ID=MEMBER), verb="help; lockdown")),
        ("a source that names no user", at.typed_raw(lambda: host.bound(**owner_bind()) and
                                                     with_source(platform="telegram",
                                                                 user_id="")())),
        ("plain chat text that looks like the command", at.typed_raw(
            lambda: host.say(MEMBER, "/many lockdown", name="Minh"))),
        ("the command's text from the model's tool call", at.typed_raw(
            lambda: host.say(MEMBER, "x", name="Minh", tools=[("many", {"raw": "lockdown"})]))),
    ]


if __name__ == "__main__":
    raise SystemExit(probe(sys.argv[1:], lambda root, folder, contract: attacks(
        Attack(root, folder, contract))))
