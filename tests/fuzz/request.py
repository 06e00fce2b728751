"""One request of a fuzz run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Request:
    """A request over HTTP, or, with `raw`, bytes on a socket."""

    method: str = "POST"
    path: str = "/"
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    what: str = ""
    """Where it comes from, for the report."""
    raw: bytes | None = None
    closes_after: int | None = None
    """Of `raw`: hang up after so many bytes."""

    def __str__(self) -> str:
        if self.raw is not None:
            return f"raw {self.raw[:300]!r} (closed after {self.closes_after})"
        return f"{self.method} {self.path} {self.what[:80]} {(self.body or b'')[:400]!r}"


def posted(path: str, body: bytes, what: str) -> Request:
    """A JSON body."""
    return Request("POST", path, body, {"Content-Type": "application/json"}, what)
