"""What a request says its answer must be: `response_format`, `structured_outputs`, and the older `guided_*` fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.structured import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.server.openai.protocol import GenerationRequest

FORMATS = ("text", "json_object", "json_schema", "structural_tag")

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}

_IGNORED = frozenset(
    {"whitespace_pattern", "disable_any_whitespace", "disable_additional_properties", "disable_fallback"}
)
"""Fields of vLLM's `structured_outputs` that choose among ways to write the same values, or among its own engines."""


def structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """What the answer must be; None when it may be anything.

    Raises:
        RequestError: Naming the field, if it can be no grammar, or two fields ask for one.
    """
    found: dict[str, StructuredOutputsParams] = {}
    if request.response_format is not None and (asked := _of_format(request.response_format)) is not None:
        found["response_format"] = asked
    if request.structured_outputs is not None:
        found["structured_outputs"] = _of_fields(request.structured_outputs)
    for name, kind in _GUIDED.items():
        if (value := getattr(request, name)) is not None:
            found[name] = StructuredOutputsParams(**{kind: _listed(kind, value)}, param=name)
    if len(found) > 1:
        first, second, *_ = found
        raise RequestError(second, message=f"{second}: must be left out with {first}")
    return next(iter(found.values()), None)


def _of_format(value: dict[str, Any]) -> StructuredOutputsParams | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True, param="response_format")
    if kind == "json_schema":
        where = "response_format.json_schema"
        wanted = value.get("json_schema")
        if not isinstance(wanted, dict):
            raise RequestError(where, wanted, "an object with a name and a schema")
        schema = wanted.get("schema")
        if schema is None:
            raise RequestError(f"{where}.schema", schema, "a JSON schema: an object, or true for any value")
        return StructuredOutputsParams(json=schema, param=f"{where}.schema")
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=value, param="response_format")
    raise RequestError("response_format.type", kind, "one of " + ", ".join(FORMATS))


def _of_fields(value: dict[str, Any]) -> StructuredOutputsParams:
    kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    for name in value:
        if name not in kinds and name not in _IGNORED:
            where = f"structured_outputs.{name[:64]}"
            raise RequestError(where, message=f"{where}: is no such field; there are {', '.join(kinds)}")
    given = {name: _listed(name, value[name]) for name in kinds if value.get(name) is not None}
    for name, kind in (("regex", str), ("grammar", str), ("json_object", bool)):
        if name in given and not isinstance(given[name], kind):
            what = "true" if kind is bool else "a text that is not empty"
            raise RequestError(f"structured_outputs.{name}", given[name], what)
    return StructuredOutputsParams(**given)


def _listed(kind: str, value: Any) -> Any:
    """Choices as a tuple; everything else as it is."""
    if kind != "choice":
        return value
    if not isinstance(value, list):
        raise RequestError("structured_outputs.choice", value, "a list of texts")
    return tuple(value)
