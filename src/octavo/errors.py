"""Every error Octavo raises on purpose.

    OctavoError
    ├── ConfigError            a setting is out of range; names the field, the value and what is allowed
    ├── RequestError           a request cannot be served as asked (HTTP 400); names the parameter
    │   ├── ContextLengthError prompt plus answer do not fit the model or the pool
    │   └── ModelNotFoundError the request names a model that is not served here (HTTP 404)
    ├── OverloadedError        the queue is full; try again later (HTTP 503)
    ├── ShuttingDownError      the server drains and takes nothing new (HTTP 503)
    ├── EngineDeadError        the engine process or thread is gone (HTTP 500)
    ├── ModelError             a model cannot be loaded
    │   ├── ModelFileError     a file is missing, damaged, or breaks its format's rules
    │   └── UnsupportedModelError  the file is sound, but names something Octavo does not have
    └── InvariantError         the audit found block memory in a state that must not be; a bug in Octavo

Messages are for the person who made the mistake: no path of the server, no address, no stack.
"""

from __future__ import annotations

from typing import Any


class OctavoError(Exception):
    """Base of every deliberate error."""


def _shorten(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _one_line(text: str) -> str:
    """Control characters, line ends and marks of direction escaped: a terminal would obey them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(OctavoError, ValueError):
    """A setting is out of range."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {_shorten(value)}: must be {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        """For errors that come from another process."""
        return type(self), (self.field, self.value, self.allowed)


class RequestError(OctavoError, ValueError):
    """A request cannot be served as asked.

    Args:
        param: The request's field, for example `temperature` or `messages[2].content`.
        value: What it held; shortened in the message.
        allowed: What it may hold, as the end of "must be ...".
        message: A whole sentence in place of the standard one.
    """

    status = 400

    def __init__(
        self, param: str | None, value: Any = None, allowed: str | None = None, *, message: str | None = None
    ) -> None:
        self.param = param
        self.value = value
        self.allowed = allowed
        super().__init__(message or f"{param} = {_shorten(value)}: must be {allowed}")


class ContextLengthError(RequestError):
    """Prompt plus answer do not fit the model's context or the KV pool."""


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""

    status = 404


class OverloadedError(OctavoError):
    """The queue is full.

    `retry_after_s` is a hint for the client's next try, in seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDownError(OctavoError):
    """The server drains and takes nothing new."""


class EngineDeadError(OctavoError):
    """The engine process or thread is gone."""


class ModelError(OctavoError):
    """A model cannot be loaded. The message is one line, whatever names a stranger's files hold."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class ModelFileError(ModelError):
    """A model file is missing, damaged, or breaks its format's rules.

    Args:
        file: The file's name, without folders.
        what: The part at fault, for example "tensor 'blk.0.attn_q.weight'" or "header".
        why: What is wrong with it.
    """

    def __init__(self, file: str, what: str, why: str) -> None:
        super().__init__(f"{file}: {what}: {why}")
        self.file = file
        self.what = what
        self.why = why


class UnsupportedModelError(ModelError):
    """The model is sound, but names something Octavo does not have."""


class InvariantError(OctavoError):
    """The audit found block memory in a state that must not be.

    `broken` lists each broken invariant as one sentence.
    """

    def __init__(self, broken: list[str]) -> None:
        super().__init__("; ".join(broken))
        self.broken = broken
