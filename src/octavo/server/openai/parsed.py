"""Parsed answers in the shapes of chat completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.engine.parsers.pieces import CallArguments, CallStart, ParsedAnswer, Piece, Reasoning, Text


def one_call_each(pieces: list[Piece]) -> list[list[Piece]]:
    """The pieces in as many chunks as it takes for none to hold parts of two calls: some clients expect that."""
    groups: list[list[Piece]] = [[]]
    for piece in pieces:
        if isinstance(piece, CallStart) and any(isinstance(p, CallStart | CallArguments) for p in groups[-1]):
            groups.append([])
        groups[-1].append(piece)
    return groups


def delta_fields(pieces: Iterable[Piece], *, with_reasoning: bool = True) -> dict[str, Any]:
    """The delta of a chunk. Reasoning goes under both names that clients look for."""
    fields: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        match piece:
            case Text(text):
                fields["content"] = fields.get("content", "") + text
            case Reasoning(text) if with_reasoning:
                fields["reasoning"] = fields["reasoning_content"] = fields.get("reasoning", "") + text
            case CallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls.append({"index": index, "id": call_id, "type": "function", "function": function})
            case CallArguments(index, text):
                if not calls or calls[-1]["index"] != index:
                    calls.append({"index": index, "function": {"arguments": ""}})
                calls[-1]["function"]["arguments"] += text
    if calls:
        fields["tool_calls"] = calls
    return fields


def message_fields(answer: ParsedAnswer, *, with_reasoning: bool = True) -> dict[str, Any]:
    """The message of a whole answer, its role aside."""
    reasoning, calls = answer.reasoning, answer.tool_calls
    text = answer.text
    fields: dict[str, Any] = {
        "content": "" if text is None and reasoning is None and not calls else text,
        "refusal": None,
    }
    if with_reasoning and reasoning is not None:
        fields["reasoning"] = fields["reasoning_content"] = reasoning
    if calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return fields
