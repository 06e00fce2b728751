"""The outermost layer: what a fault inside becomes outside, and in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.errors import EngineDeadError, ModelNotFoundError, OverloadedError, RequestError
from octavo.server.body import ClientDisconnectedError
from octavo.server.gate import Gate
from octavo.server.metrics import ServerMetrics
from octavo.server.openai.errors import MAX_MESSAGE_CHARS, MAX_PARAM_CHARS


def answer(error: Exception | None, *, after_start: bool = False, headers: Any = ()) -> tuple[list[Any], ServerMetrics]:
    """What is sent when the application inside raises."""
    sent: list[Any] = []
    metrics = ServerMetrics(256)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if error is None or after_start:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if error is not None:
            raise error

    async def send(message: Any) -> None:
        sent.append(message)

    context: Any = SimpleNamespace(metrics=metrics, http=HTTPConfig())
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": list(headers)}
    asyncio.run(Gate(app, context)(scope, lambda: None, send))  # type: ignore[arg-type, return-value]
    return sent, metrics


def test_an_error_is_no_echo() -> None:
    sent, _ = answer(RequestError("x" * 70_000, message="y" * 70_000))
    error = json.loads(sent[-1]["body"])["error"]
    assert len(error["message"]) == MAX_MESSAGE_CHARS and len(error["param"]) == MAX_PARAM_CHARS


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("n", 0, "at least 1"), 400, None),
        (ModelNotFoundError("model", "x", "served"), 404, "model_not_found"),
        (OverloadedError("full", 2.4), 503, "overloaded"),
        (EngineDeadError("pid 5 died"), 500, "engine_dead"),
        (ValueError("secret"), 500, "internal_error"),
    ],
)
def test_each_error_has_its_reply(error: Exception, status: int, code: str | None) -> None:
    (start, body), metrics = answer(error)
    assert start["status"] == status
    assert json.loads(body["body"])["error"]["code"] == code
    assert metrics.http["other", "POST", f"{status // 100}xx"] == 1
    if status == 503:
        assert dict(start["headers"])[b"retry-after"] == b"3"


def test_the_words_of_an_unexpected_error_stay_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        (_, body), _ = answer(ValueError("the user's secret"))
    assert b"secret" not in body["body"]
    assert "secret" not in caplog.text
    assert "ValueError" in caplog.text and "test_gate.py" in caplog.text


def test_nothing_more_is_sent_once_a_reply_has_begun() -> None:
    sent, _ = answer(ValueError("late"), after_start=True)
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_nobody_is_answered_who_has_left() -> None:
    sent, metrics = answer(ClientDisconnectedError())
    assert sent == []
    assert metrics.http["other", "POST", "4xx"] == 1
