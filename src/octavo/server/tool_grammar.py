"""What generation is held to so that calls are valid: required and named ones, and those of strict tools."""

from __future__ import annotations

from typing import Any

from octavo.engine.parsers.choose import OutputFormat
from octavo.errors import RequestError
from octavo.server.tool_use import ToolUse
from octavo.structured import StructuredOutputsParams

MAX_CALLS = 128
"""Calls in one required answer."""

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def required_calls(use: ToolUse) -> StructuredOutputsParams:
    """A list of calls, as `RequiredCallsParser` reads it."""
    definitions: dict[str, Any] = {}
    calls = []
    for i, tool in enumerate(use.tools):
        definitions[f"tool{i}"] = moved(parameters_of(tool), f"#/$defs/tool{i}")
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["function"]["name"]},
                    "parameters": {"$ref": f"#/$defs/tool{i}"},
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    most = MAX_CALLS if use.parallel else 1
    schema = {"type": "array", "items": items, "minItems": 1, "maxItems": most, "$defs": definitions}
    return StructuredOutputsParams(json=schema, param="tools")


def named_call(use: ToolUse) -> StructuredOutputsParams:
    """The arguments of the one tool."""
    i, tool = next((i, tool) for i, tool in enumerate(use.tools) if tool["function"]["name"] == use.name)
    return StructuredOutputsParams(json=parameters_of(tool), param=f"tools[{i}].function.parameters")


def strict_calls(use: ToolUse, form: OutputFormat) -> StructuredOutputsParams | None:
    """Free text in which every call obeys its tool's schema; None where no tool is strict.

    Raises:
        RequestError: If the model writes calls in a way that cannot be held to a schema.
    """
    strict = [i for i, tool in enumerate(use.tools) if tool["function"].get("strict")]
    if not strict:
        return None
    shape = _SHAPES.get(form.tool_parser or "")
    if shape is None:
        field = f"tools[{strict[0]}].function.strict"
        why = f"this model's calls ({form.tool_parser}) cannot be held to a schema when it may choose to make none"
        raise RequestError(field, message=f'{field}: {why}; use tool_choice "required", or leave strict out')
    trigger, begin, end = shape
    structures = [
        {
            "begin": begin % tool["function"]["name"],
            "schema": parameters_of(tool) if i in strict else {"type": "object"},
            "end": end,
        }
        for i, tool in enumerate(use.tools)
    ]
    return StructuredOutputsParams(structural_tag={"triggers": [trigger], "structures": structures}, param="tools")


_SHAPES = {
    "hermes": ("<tool_call>", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>"),
    "llama3_json": ('{"name": "', '{"name": "%s", "parameters": ', "}"),
    "llama4_json": ('{"name": "', '{"name": "%s", "parameters": ', "}"),
}
"""By parser: what announces a call, its text up to the arguments, and its end."""


def parameters_of(tool: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments."""
    parameters = tool["function"].get("parameters")
    if parameters is None:
        return _NO_ARGUMENTS
    return parameters if "type" in parameters or "$ref" in parameters else {**parameters, "type": "object"}


def moved(schema: Any, to: str) -> Any:
    """A schema whose references into itself find their targets when it stands at `to` inside another."""
    if isinstance(schema, list):
        return [moved(item, to) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: to + value[1:]
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else moved(value, to)
        for name, value in schema.items()
    }
