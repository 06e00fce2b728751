"""Pieces of an answer as deltas of chat completions."""

from __future__ import annotations

from octavo.engine.parsers.pieces import CallArguments, CallStart, ParsedAnswer, Piece, Reasoning, Text
from octavo.server.openai.parsed import delta_fields, message_fields, one_call_each

PIECES: list[Piece] = [
    Reasoning("a"),
    Text("b"),
    CallStart(0, "i", "f"),
    CallArguments(0, "{"),
    CallArguments(0, "}"),
    Text("c"),
    CallStart(1, "j", "g"),
]


def test_no_chunk_holds_parts_of_two_calls() -> None:
    first, second = one_call_each(PIECES)
    assert delta_fields(first) == {
        "reasoning": "a",
        "reasoning_content": "a",
        "content": "bc",
        "tool_calls": [{"index": 0, "id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert [call["index"] for call in delta_fields(second)["tool_calls"]] == [1]
    assert one_call_each([]) == [[]] and delta_fields([]) == {}
    assert delta_fields([CallArguments(1, "x")]) == {"tool_calls": [{"index": 1, "function": {"arguments": "x"}}]}


def test_messages_have_what_there_is() -> None:
    answer = ParsedAnswer()
    assert message_fields(answer) == {"content": "", "refusal": None}
    answer.add(PIECES)
    whole = message_fields(answer)
    assert whole["content"] == "bc" and whole["reasoning"] == whole["reasoning_content"] == "a"
    assert [call["function"]["arguments"] for call in whole["tool_calls"]] == ["{}", ""]
    assert "reasoning" not in message_fields(answer, with_reasoning=False)
    only_thoughts = ParsedAnswer()
    only_thoughts.add([Reasoning("a")])
    assert message_fields(only_thoughts)["content"] is None
