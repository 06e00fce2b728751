"""What a case needs of the engine under test, whatever it is: text in, text out, and a look at its memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().splitlines()]


@dataclass
class Choice:
    """One answer, put together from however it came."""

    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: dict[str, list[Any]] | None = None
    num_ends: int = 0
    """Pieces that carried a finish reason."""


@dataclass
class Outcome:
    """What a request came to."""

    status: int
    choices: list[Choice] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    num_usages: int = 0
    error: dict[str, Any] | None = None
    took_s: float = 0.0
    id: str = ""

    @property
    def texts(self) -> list[str]:
        return [choice.text for choice in self.choices]

    @property
    def completion_tokens(self) -> int:
        assert self.usage is not None
        count: int = self.usage["completion_tokens"]
        return count


class Runner(Protocol):
    """A running engine. `fields` are those of an OpenAI completions request."""

    max_model_len: int

    def complete(
        self, fields: dict[str, Any], *, stream: bool = False, chat: bool = False, client_id: str | None = None
    ) -> Outcome: ...

    def send_raw(self, body: str, *, chat: bool = False) -> Outcome:
        """Send a body that may be no valid request."""
        ...

    def leave(self, fields: dict[str, Any], *, stream: bool, after_s: float) -> None:
        """Send a request and go away without an answer."""
        ...

    def read_some(self, fields: dict[str, Any], num_chunks: int) -> None:
        """Open a stream, read some of it, and go away."""
        ...

    def token_ids(self, tokens: list[str]) -> list[int]:
        """Ids of tokens by their exact spelling, for a scripted engine."""
        ...

    def num_held_blocks(self) -> int: ...
    def num_computed_tokens(self) -> int:
        """Prompt tokens computed since the start."""
        ...

    def num_running(self) -> int: ...
    def num_waiting(self) -> int: ...
    def kv_stats(self) -> dict[str, Any]:
        """The body of /v1/kv/stats, with the accounts of all tenants."""
        ...

    def audit(self) -> list[str]:
        """Broken invariants of the block memory."""
        ...

    def counter(self, name: str) -> float:
        """One of the engine's counters by its metric's name."""
        ...

    def prompt_logprobs(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """The `prompt_logprobs` of a request: per position, candidates by token id."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """The text of an answer's tokens."""
        ...

    def alive(self) -> bool: ...
    def terminate(self) -> None:
        """Ask it to end, as an operator would."""
        ...

    def wait_exit(self) -> int: ...
