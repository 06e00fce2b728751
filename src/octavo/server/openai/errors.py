"""The error envelope of the OpenAI API, and which error becomes which reply.

Every refusal, whatever its cause, is `{"error": {"message", "type", "param", "code"}}`. Messages of Octavo's own errors
are written for the client; anything else is a fault of ours, and the client learns only that there was one.
"""

from __future__ import annotations

import logging
import math
import traceback

import msgspec

from octavo.errors import (
    ContextLengthError,
    EngineDeadError,
    ModelNotFoundError,
    OctavoError,
    OverloadedError,
    RequestError,
    ShuttingDownError,
)

log = logging.getLogger("octavo.server")

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
UNAVAILABLE = "service_unavailable_error"

MAX_MESSAGE_CHARS = 1000
MAX_PARAM_CHARS = 200

SHUTDOWN_RETRY_AFTER_S = 5
"""Hint to clients of a draining server: by then another replica, or the restarted one, should answer."""


class UnsupportedFieldError(RequestError):
    """A documented field that this server does not have yet, set to something that would change the answer."""

    def __init__(self, param: str, message: str | None = None) -> None:
        super().__init__(param, message=message or f"{param} is not supported yet")


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it goes to the client."""

    status: int
    message: str
    type: str = INVALID_REQUEST
    param: str | None = None
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Cut what a client's own words have made endless: an error is no echo."""
        for name, limit in (("message", MAX_MESSAGE_CHARS), ("param", MAX_PARAM_CHARS)):
            text = getattr(self, name)
            if text is not None and len(text) > limit:
                msgspec.structs.force_setattr(self, name, text[: limit - 3] + "...")

    def body(self) -> bytes:
        """The envelope as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class HTTPProblem(OctavoError):
    """A refusal decided by the HTTP layer itself, before any request of the engine exists."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


def problem(status: int, message: str, code: str | None = None, **fields: object) -> HTTPProblem:
    """An `HTTPProblem`, ready to be raised."""
    return HTTPProblem(msgspec.convert({"status": status, "message": message, "code": code, **fields}, ErrorReply))


def reply_to(error: BaseException) -> ErrorReply:
    """The reply that an exception becomes. Unknown exceptions give a 500 that says nothing about them."""
    match error:
        case HTTPProblem():
            return error.reply
        case ModelNotFoundError():
            return ErrorReply(status=error.status, message=str(error), param=error.param, code="model_not_found")
        case RequestError():
            return ErrorReply(status=error.status, message=str(error), param=error.param, code=_code_of(error))
        case OverloadedError():
            wait = str(max(1, math.ceil(error.retry_after_s)))
            headers = (("retry-after", wait),)
            return ErrorReply(status=503, message=str(error), type=UNAVAILABLE, code="overloaded", headers=headers)
        case ShuttingDownError():
            headers = (("retry-after", str(SHUTDOWN_RETRY_AFTER_S)),)
            message = str(error) or "the server is shutting down"
            return ErrorReply(status=503, message=message, type=UNAVAILABLE, code="shutting_down", headers=headers)
        case EngineDeadError():
            message = "the engine has stopped; the server must be restarted"
            return ErrorReply(status=500, message=message, type=SERVER_ERROR, code="engine_dead")
        case OctavoError():  # a sequence that failed alone
            return ErrorReply(status=500, message=str(error), type=SERVER_ERROR, code="generation_failed")
        case _:
            return ErrorReply(status=500, message="internal server error", type=SERVER_ERROR, code="internal_error")


def answer_to(error: BaseException) -> ErrorReply:
    """`reply_to`, and a line in the log when the fault is ours.

    The message of an unexpected exception may quote a prompt: only its type and place are logged by default.
    """
    reply = reply_to(error)
    if reply.code == "internal_error":
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("%s while answering a request\n%s", type(error).__name__, where)
        log.debug("its message: %s", error)
    return reply


def _code_of(error: RequestError) -> str | None:
    if isinstance(error, ContextLengthError):
        return "context_length_exceeded"
    if isinstance(error, UnsupportedFieldError):
        return "unsupported_parameter"
    return None
