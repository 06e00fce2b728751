"""Request bodies: strict JSON, bounded, and errors that say what is wrong."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.body import MAX_JSON_DEPTH, ClientDisconnectedError, parse_json_object, read_json_object
from octavo.server.openai.errors import HTTPProblem


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": 1} trailing', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not valid UTF-8"),
        (b'{"a": 1, "b": 2, "a": 3}', "a: is given twice"),
        (b'{"x": {"a": 1, "a": 1}}', "a: is given twice"),
        (b'{"a": "\\ud800"}', "a: holds a lone surrogate"),
        (b'{"m": [{"content": "ok"}, {"content": "\\udfff"}]}', "m[1].content: holds a lone surrogate"),
        (b'{"\\ud800": 1}', "lone surrogate"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "is given twice"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "too long"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
        (b'{"a":' * 5000, "nested deeper"),
    ],
)
def test_malformed_bodies_are_refused_by_name(raw: bytes, message: str) -> None:
    with pytest.raises(HTTPProblem) as caught:
        parse_json_object(raw)
    reply = caught.value.reply
    assert reply.status == 400
    assert message in reply.message
    json.loads(reply.body())  # whatever the input, the answer is valid JSON


def test_depth_up_to_the_limit_is_accepted() -> None:
    inner = b"[" * (MAX_JSON_DEPTH - 1) + b"]" * (MAX_JSON_DEPTH - 1)
    assert parse_json_object(b'{"a": ' + inner + b"}")
    many_but_flat = b'{"a": [' + b",".join([b"[]"] * 1000) + b"]}"
    assert len(parse_json_object(many_but_flat)["a"]) == 1000


def test_a_byte_order_mark_in_front_is_no_part_of_the_text() -> None:
    assert parse_json_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    with pytest.raises(HTTPProblem, match="not valid JSON"):
        parse_json_object(b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}')


def test_surrogate_pairs_are_text() -> None:
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
            max_leaves=10,
        ),
    )
)
def test_valid_json_comes_through_unchanged(value: dict[str, Any]) -> None:
    assert parse_json_object(json.dumps(value).encode()) == value


def read(pieces: list[bytes | None], headers: dict[str, str], limit: int) -> dict[str, Any]:
    """Feed pieces of a body; None is the client's leaving."""
    messages = [
        {"type": "http.disconnect"}
        if piece is None
        else {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    taken = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(taken)

    scope = {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    return asyncio.run(read_json_object(scope, receive, limit))


def test_a_body_in_pieces_is_joined() -> None:
    assert read([b'{"a"', b": 1", b"}"], {"content-type": "application/json; charset=utf-8"}, 100) == {"a": 1}


def test_a_body_is_refused_before_it_has_all_arrived() -> None:
    with pytest.raises(HTTPProblem) as caught:
        read([b'{"a": "', b"x" * 200, b"never read"], {}, 100)
    assert caught.value.reply.status == 413


def test_a_declared_length_is_refused_before_reading() -> None:
    with pytest.raises(HTTPProblem) as caught:
        read([], {"content-length": "101"}, 100)
    assert caught.value.reply.status == 413


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_content_types_are_refused(kind: str) -> None:
    with pytest.raises(HTTPProblem) as caught:
        read([b"{}"], {"content-type": kind}, 100)
    assert caught.value.reply.status == 415


def test_a_client_that_leaves_midway_is_not_answered() -> None:
    with pytest.raises(ClientDisconnectedError):
        read([b'{"a"', None], {}, 100)
