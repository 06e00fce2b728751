"""What the front end and the engine process say to each other: a closed list of messages, in msgpack.

Nothing is ever unpickled: a decoder builds the types below and refuses everything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from octavo.config import EngineConfig
from octavo.engine.loop import Batch
from octavo.engine.questions import AnyQuestion, Question
from octavo.errors import ConfigError, EngineDeadError, ModelError, ModelFileError, OctavoError, UnsupportedModelError
from octavo.messages import EngineInfo, EngineRequest

if TYPE_CHECKING:
    from octavo.weights.sources import ModelFiles

A = TypeVar("A")


class Start(msgspec.Struct, tag="start", array_like=True):
    """The first message to a new engine process."""

    config_json: bytes
    """An `EngineConfig`."""
    model_path: str
    model_kind: str
    model_name: str
    model_overrides: dict[str, Any]
    """The model's files, a `ModelFiles`."""

    @classmethod
    def of(cls, config: EngineConfig, files: ModelFiles) -> Start:
        return cls(msgspec.json.encode(config), str(files.path), files.kind, files.name, files.overrides)

    def unpack(self) -> tuple[EngineConfig, ModelFiles]:
        from octavo.weights.sources import ModelFiles

        config = msgspec.json.decode(self.config_json, type=EngineConfig)
        return config, ModelFiles(
            path=Path(self.model_path), kind=self.model_kind, name=self.model_name, overrides=self.model_overrides
        )


class Add(msgspec.Struct, tag="add", array_like=True):
    request: EngineRequest


class Abort(msgspec.Struct, tag="abort", array_like=True):
    request_id: int
    index: int | None


class Ask(msgspec.Struct, tag="ask", array_like=True):
    number: int
    """Comes back with the answer."""
    question: AnyQuestion


class Stop(msgspec.Struct, tag="stop", array_like=True):
    pass


Command = Start | Add | Abort | Ask | Stop


class Started(msgspec.Struct, tag="started", array_like=True):
    info: EngineInfo


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """The engine could not start."""

    kind: str
    arguments: list[Any]


class Answered(msgspec.Struct, tag="answered", array_like=True):
    number: int
    answer: msgspec.Raw
    """Of the question's `answer_type`, encoded."""


class Unanswered(msgspec.Struct, tag="unanswered", array_like=True):
    """The question failed; the engine goes on."""

    number: int
    why: str


Event = Started | Failed | Batch | Answered | Unanswered

_ENCODER = msgspec.msgpack.Encoder()
encode = _ENCODER.encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode


def answer_to(question: Question[A], event: Answered | Unanswered) -> A:
    """The answer that an event holds.

    Raises:
        OctavoError: If the question failed.
    """
    if isinstance(event, Unanswered):
        raise OctavoError(event.why)
    answer: A = msgspec.msgpack.decode(event.answer, type=question.answer_type)
    return answer


def failure(error: BaseException) -> Failed:
    """An exception as a message."""
    if isinstance(error, ConfigError):
        value = error.value if isinstance(error.value, str | int | float | None) else repr(error.value)
        return Failed("ConfigError", [error.field, value, error.allowed])
    if isinstance(error, ModelFileError):
        return Failed("ModelFileError", [error.file, error.what, error.why])
    for kind in (UnsupportedModelError, ModelError):
        if isinstance(error, kind):
            return Failed(kind.__name__, [str(error)])
    return Failed("EngineDeadError", [f"the engine could not start: {type(error).__name__}: {error}"])


_KINDS: dict[str, type[OctavoError]] = {
    kind.__name__: kind for kind in (ConfigError, ModelFileError, UnsupportedModelError, ModelError, EngineDeadError)
}


def raise_failure(message: Failed) -> NoReturn:
    """Raise the exception again, as the type it was."""
    raise _KINDS[message.kind](*message.arguments)
