"""The tools of a request, whatever API it came through."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.engine.parsers.choose import ToolChoice


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request, checked, whatever API it came through."""

    tools: list[dict[str, Any]]
    """In the form of chat completions: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    choice: ToolChoice = "auto"
    name: str | None = None
    """The tool that must be called, with the choice "named"."""
    parallel: bool = True
    """Whether one answer may hold several calls."""

    @property
    def names(self) -> frozenset[str]:
        """The tools that may be called."""
        if self.name is not None:
            return frozenset({self.name})
        return frozenset(tool["function"]["name"] for tool in self.tools)
