"""What generation is held to so that calls are valid: required and named ones, and those of strict tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.engine.parsers.choose import OutputFormat
from octavo.errors import RequestError
from octavo.server.held import Rules, after_text, json_value, text
from octavo.server.tool_use import ToolUse
from octavo.structured import StructuredOutputsParams, schema_text

ControlId = Callable[[str], int | None]

MAX_CALLS = 128
"""Calls in one required answer."""

MAX_REFERENCES = 16
"""From the schema of a tool's arguments to what it refers to."""

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def required_calls(use: ToolUse) -> StructuredOutputsParams:
    """A list of calls, as `RequiredCallsParser` reads it."""
    definitions: dict[str, Any] = {}
    calls = []
    for i, tool in enumerate(use.tools):
        definitions[f"tool{i}"] = moved(parameters_of(use.tools, i), f"#/$defs/tool{i}")
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
    i = next(i for i, tool in enumerate(use.tools) if tool["function"]["name"] == use.name)
    return StructuredOutputsParams(json=parameters_of(use.tools, i), param=field_of(i))


def is_strict(use: ToolUse) -> bool:
    """Whether a tool asks for arguments that obey its schema, whatever the choice."""
    return any(tool["function"].get("strict") for tool in use.tools)


def strict_calls(use: ToolUse, form: OutputFormat, control_id: ControlId) -> StructuredOutputsParams:
    """Free text in which every call of a strict tool obeys its schema.

    Raises:
        RequestError: If the model writes calls in a way that cannot be held to a schema.
    """
    shape = _TAGS.get(form.tool_parser or "")
    if shape is not None and control_id(shape[0]) is None:
        trigger, begin, end = shape
        structures = [
            {
                "begin": begin % tool["function"]["name"],
                "schema": parameters_of(use.tools, i) if tool["function"].get("strict") else {"type": "object"},
                "end": end,
            }
            for i, tool in enumerate(use.tools)
        ]
        return StructuredOutputsParams(structural_tag={"triggers": [trigger], "structures": structures}, param="tools")
    rules = call_rules(use, form, control_id)
    if rules is not None and "answer: <[" in rules[0]:
        return after_text(rules, "tools")
    which = next(i for i, tool in enumerate(use.tools) if tool["function"].get("strict"))
    field = f"tools[{which}].function.strict"
    why = f"this model's calls ({form.tool_parser}) cannot be held to a schema when it may choose to make none"
    raise RequestError(field, message=f'{field}: {why}; use tool_choice "required", or leave strict out')


_TAGS = {
    "hermes": ("<tool_call>", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>"),
    "llama3_json": ('{"name": "', '{"name": "%s", "parameters": ', "}"),
    "llama4_json": ('{"name": "', '{"name": "%s", "parameters": ', "}"),
}
"""By parser: what announces a call in free text, its text up to the arguments, and its end."""


def call_rules(use: ToolUse, form: OutputFormat, control_id: ControlId) -> Rules | None:
    """The rules of calls as the model writes them, one at least; None where there are none for its way.

    Args:
        control_id: The id of a control token by its spelling; None where the spelling is text.
    """

    def mark(spelling: str) -> str:
        token_id = control_id(spelling)
        return text(spelling) if token_id is None else f"<[{token_id}]>"

    def arguments(i: int) -> str:
        return json_value(parameters_of(use.tools, i), field_of(i))

    more = f" more{{0,{MAX_CALLS - 1}}}" if use.parallel else ""
    key = "parameters" if form.tool_parser in ("llama3_json", "llama4_json") else "arguments"
    any_call = f"call: {' | '.join(f'call{i}' for i in range(len(use.tools)))}"

    def calls() -> Rules:
        objects = [
            f"{text(_OBJECT % (tool['function']['name'], key))} {arguments(i)} {text('}')}"
            for i, tool in enumerate(use.tools)
        ]
        return [any_call, *(f"call{i}: {line}" for i, line in enumerate(objects))]

    match form.tool_parser:
        case "hermes":
            tagged = f"{mark('<tool_call>')} /\\n?/ call /\\n?/ {mark('</tool_call>')}"
            return [f"answer: {tagged}{more}", f"more: /\\n?/ {tagged}", *calls()]
        case "llama3_json" | "llama4_json":
            return [f"answer: call{more}", "more: /; ?/ call", *calls()]
        case "granite" | "phi4_mini_json":
            listed = f'{mark("<|tool_call|>")} "[" call{more} "]"'
            return [f"answer: {listed}", "more: /, ?/ call", *calls()]
        case "mistral" if control_id("[ARGS]") is not None:
            named = [
                f"call{i}: {text(tool['function']['name'])} {mark('[ARGS]')} {arguments(i)}"
                for i, tool in enumerate(use.tools)
            ]
            begin = mark("[TOOL_CALLS]")
            return [f"answer: {begin} call{more}", f"more: {begin} call", any_call, *named]
        case "mistral":
            return [f'answer: {mark("[TOOL_CALLS]")} "[" call{more} "]"', "more: /, ?/ call", *calls()]
        case _:
            return None


_OBJECT = '{"name": "%s", "%s": '


def field_of(i: int) -> str:
    """Where the request has the schema of a tool's arguments."""
    return f"tools[{i}].function.parameters"


def parameters_of(tools: list[dict[str, Any]], i: int) -> dict[str, Any]:
    """The schema of a tool's arguments, checked where the request has it: what it becomes a part of has other places.

    Raises:
        RequestError: If it holds what is no JSON, or is the schema of something else than an object.
    """
    parameters = tools[i]["function"].get("parameters")
    if parameters is None:
        return _NO_ARGUMENTS
    schema_text(parameters, field_of(i))
    kind = _referred(parameters).get("type", "object")
    if kind not in ("object", ["object"]):
        raise RequestError(f"{field_of(i)}.type", kind, '"object": the arguments of a call are one')
    return parameters if "type" in parameters or "$ref" in parameters else {**parameters, "type": "object"}


def _referred(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that stands for this one by `$ref`; what leads nowhere, or round in a circle, is the compiler's to
    refuse."""
    found = schema
    for _ in range(MAX_REFERENCES):
        target = found.get("$ref")
        if not isinstance(target, str) or not target.startswith("#"):
            return found
        at: Any = schema
        for name in target[1:].split("/")[1:]:
            at = at.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            return {}
        found = at
    return {}


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
