"""/openapi.json describes every route, from the types that requests are read into."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.server.auth import OPEN_PATHS
from octavo.server.openai.protocol import ChatRequest, CompletionRequest
from octavo.server.openapi.document import openapi
from octavo.server.openapi.operations import OPERATIONS
from octavo.server.page_files import PAGE_FILES
from support.app import served_routes


def described() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(openapi()))
    return document


def test_every_route_is_described_and_nothing_else() -> None:
    served = {
        (method, re.sub(r":\w+\}", "}", route.path))
        for route in served_routes()
        for method in route.methods - {"HEAD"}
        if route.path not in PAGE_FILES
    }
    assert served == set(OPERATIONS)
    assert {(m.upper(), path) for path, item in described()["paths"].items() for m in item} == served


def test_every_reference_leads_somewhere() -> None:
    document = described()
    schemas = document["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in schemas
    assert len({item["operationId"] for path in document["paths"].values() for item in path.values()}) == len(
        OPERATIONS
    )


def test_requests_have_the_fields_that_are_read() -> None:
    schemas = described()["components"]["schemas"]
    for kind in (ChatRequest, CompletionRequest):
        assert set(schemas[kind.__name__]["properties"]) == set(kind.__struct_fields__)


def test_probes_need_no_key_and_the_rest_does() -> None:
    document = described()
    assert document["security"] == [{"bearer": []}, {"x-api-key": []}]
    open_paths = {
        path for path, item in document["paths"].items() if any(m.get("security") == [] for m in item.values())
    }
    assert open_paths == OPEN_PATHS


def test_parameters_of_a_path_are_named() -> None:
    for path, item in described()["paths"].items():
        for operation in item.values():
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), path
