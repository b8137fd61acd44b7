"""An external memory provider with a fixed block and a fixed recall."""

from __future__ import annotations

from typing import Any

from agent.memory_provider import MemoryProvider


class ProbeMemory(MemoryProvider):  # type: ignore[misc]
    @property
    def name(self) -> str:
        return "probe_memory"

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **kwargs: Any) -> None:
        """Nothing to set up."""

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return []

    def system_prompt_block(self) -> str:
        return "PROVIDER-BLOCK"

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        return "PROVIDER-RECALL"


def register(ctx: Any) -> None:
    ctx.register_memory_provider(ProbeMemory())
