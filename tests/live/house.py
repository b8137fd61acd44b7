"""A household on the real gateway: the plugin installed as a user does, claimed by its owner."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_model import text_of
from gateway_lab import GatewayLab, Home, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
OWNER, MINH, KID, EVE = "111", "222", "333", "999"
SECRET = re.compile(r"\b([3-9A-Y]{5}-[3-9A-Y]{5})\b")
PROMPT = re.compile(r"Approval ([3-9A-Y]{4})\b")

# The claim as the operator's own process makes it: the host's discovery, its command table.
CLAIM = """
from hermes_cli.plugins import discover_plugins, get_plugin_command_handler
discover_plugins()
print(get_plugin_command_handler("many")("claim"))
"""

MEMORY = "CANARY-MEMORY the safe is behind the painting\n§\nCANARY-SECOND entry"
# One pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg==")
PROFILE = "CANARY-PROFILE the owner is called Boss"


class House:
    """A lab with the plugin in it, and the words of its people."""

    def __init__(self, lab: GatewayLab) -> None:
        self.lab = lab

    def claim(self) -> None:
        said = self.lab.home.run(sys.executable, "-c", CLAIM).stdout
        self.many(OWNER, f"claim {secret_in(said)}", "Boss")

    def many(self, user: str, verb: str, name: str = "", chat: str = "dm") -> str:
        """`/many verb` typed in a chat; the answer."""
        return "\n".join(self.lab.say(user, f"/many {verb}", name, chat))

    def boss(self, verb: str, chat: str = "dm") -> str:
        return self.many(OWNER, verb, "Boss", chat)

    def say(self, user: str, text: str, name: str = "", chat: str = "dm") -> str:
        return "\n".join(self.lab.say(user, text, name, chat))

    def join(self, user: str, name: str, role: str = "member") -> str:
        code = secret_in(self.boss(f"invite {role}"))
        return self.say(user, f"join {code}", name)

    def wait_for_prompt(self, after: int = 0, chat: str = OWNER) -> str:
        """The first approval prompt in an owner's chat after so many messages; "" if none came."""
        def prompts() -> list[str]:
            return [text for text in self.lab.sent(chat)[after:] if PROMPT.search(text)]
        wait_until(lambda: bool(prompts()), 20)
        self.lab.wait_idle()
        return next(iter(prompts()), "")

    def wait_for_prompt_while_busy(self, after: int = 0) -> str:
        """As `wait_for_prompt`, while somebody's tool call waits for the answer."""
        def prompts() -> list[str]:
            return [text for text in self.lab.sent(OWNER)[after:] if PROMPT.search(text)]
        wait_until(lambda: bool(prompts()), 20)
        return next(iter(prompts()), "")

    def last_request(self) -> dict[str, Any]:
        return self.lab.turn_requests[-1]

    def post_photo(self, user: str, caption: str, name: str, chat_id: str) -> None:
        """A picture with a caption, sent in a group; does not wait for any turn."""
        from gateway.platforms.event import MessageEvent, MessageType

        picture = self.lab.home.work / "picture.png"
        picture.write_bytes(PICTURE)
        adapter = self.lab.adapters[self.lab.platform]
        source = adapter.build_source(
            chat_id=chat_id, chat_name=chat_id, chat_type="group", user_id=user, user_name=name,
            thread_id=None, message_id=f"photo {user}")
        event = MessageEvent(
            text=caption, message_type=MessageType.PHOTO, source=source, user_id=user,
            message_id=source.message_id, user_name=name, media_urls=[str(picture)],
            media_types=["image/png"])
        asyncio.run_coroutine_threadsafe(
            adapter.handle_message(event), self.lab._loop).result(30)


def secret_in(text: str) -> str:
    match = SECRET.search(text)
    if match is None:
        raise LookupError(f"no code in {text[:300]!r}")
    return match.group(1)


def code_in(prompt: str) -> str:
    match = PROMPT.search(prompt)
    if match is None:
        raise LookupError(f"no approval code in {prompt[:300]!r}")
    return match.group(1)


def system_of(request: dict[str, Any]) -> str:
    return text_of(request["messages"][0]["content"])


@contextmanager
def house(settings: dict[str, Any] | None = None, *, claimed: bool = True,
          memory: bool = True, **options: Any) -> Iterator[House]:
    """A booted house; with `memory` the operator's own notes are filled with canaries."""
    files = dict(options.pop("files", {}))
    if memory:
        files |= {"memories/MEMORY.md": MEMORY, "memories/USER.md": PROFILE}
    with GatewayLab(ROOT, settings, files=files, **options) as lab:
        made = House(lab)
        if claimed:
            made.claim()
        lab.model.requests.clear()
        yield made


def store_path(home: Home) -> Path:
    return home.path / "plugin-data" / "manyhands" / "manyhands.db"
