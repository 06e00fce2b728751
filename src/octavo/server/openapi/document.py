"""An OpenAPI 3.1 document from the operations' types."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from octavo import __version__
from octavo.server.auth import OPEN_PATHS
from octavo.server.openapi.operations import EVENTS, JSON, OPERATIONS, Operation

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def openapi() -> dict[str, Any]:
    """The document. Its schemas are those of the very types that requests are read into."""
    types = _types()
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _described(method, path, operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
        "security": [{name: []} for name in _SCHEMES],
    }


def _types() -> list[Any]:
    """All types of all operations, each once."""
    found: dict[int, Any] = {}
    for operation in OPERATIONS.values():
        for kind in (operation.request, operation.reply, operation.event, operation.error):
            if kind is not None:
                found[id(kind)] = kind
    return list(found.values())


def _described(method: str, path: str, operation: Operation, schema_of: dict[int, Any]) -> dict[str, Any]:
    name = re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_")
    described: dict[str, Any] = {"operationId": name, "summary": operation.summary}
    parameters = [_in_path(match) for match in _PARAMETER.findall(path)]
    parameters += [_in_query(name, kind) for name, kind in operation.query]
    if parameters:
        described["parameters"] = parameters
    if operation.request is not None:
        content = {operation.request_type: {"schema": schema_of[id(operation.request)]}}
        described["requestBody"] = {"required": not operation.may_be_empty, "content": content}
    described["responses"] = {
        "200": {"description": "The answer", "content": _content(operation, schema_of)},
        "default": {
            "description": "A refusal",
            "content": {JSON: {"schema": schema_of[id(operation.error)]}},
        },
    }
    if path in OPEN_PATHS:
        described["security"] = []
    return described


def _content(operation: Operation, schema_of: dict[int, Any]) -> dict[str, Any]:
    if operation.reply is None:
        return {operation.reply_type: {"schema": {"type": "string"}}}
    content = {operation.reply_type: {"schema": schema_of[id(operation.reply)]}}
    if operation.event is not None:
        content[EVENTS] = {"schema": schema_of[id(operation.event)]}
    return content


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": msgspec.json.schema(kind)}
