"""docs/http-api.md names every field, error code, limit and metric there is."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.engine.input_processor import MAX_SALT_CHARS
from octavo.messages import EngineStats
from octavo.server.body import BODY_TIMEOUT_S, MAX_JSON_DEPTH
from octavo.server.metrics import ServerMetrics, render
from octavo.server.openai import protocol
from octavo.server.openai.fields import IGNORED, REFUSED_CHAT, REFUSED_COMPLETION
from octavo.server.openai.protocol import TEMPLATE_KWARGS, ChatRequest, CompletionRequest
from octavo.server.openapi.operations import OPERATIONS
from support.infos import tiny_info

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "src" / "octavo" / "server"
PAGE = (ROOT / "docs" / "http-api.md").read_text()
QUOTED = set(re.findall(r"`([^`]+)`", PAGE))


def test_every_field_is_named() -> None:
    fields = {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__, *IGNORED}
    fields |= {*REFUSED_CHAT, *REFUSED_COMPLETION, *TEMPLATE_KWARGS}
    assert fields <= QUOTED


def test_every_error_code_is_named() -> None:
    lines = [line for path in SERVER.rglob("*.py") for line in path.read_text().splitlines()]
    codes = {code for line in lines for code in re.findall(r'code="([a-z_]+)"', line)}
    codes |= {code for line in lines if "problem(" in line for code in re.findall(r', "([a-z_]+)"[,)]', line)}
    assert {"overloaded", "engine_dead", "internal_error", "request_too_large", "headers_too_large"} <= codes
    assert codes <= QUOTED


def test_limits_are_as_stated() -> None:
    assert f"each of at most {protocol.MAX_STOP_CHARS} characters" in PAGE
    assert f"1 to {MAX_SALT_CHARS} characters without control characters" in PAGE
    assert f"more than {MAX_JSON_DEPTH} levels deep" in PAGE
    assert f"more than {BODY_TIMEOUT_S:.0f} s" in PAGE


def test_every_metric_is_named() -> None:
    text = render(ServerMetrics(256), tiny_info(), EngineStats(), "m", vllm_names=False).decode()
    names = set(re.findall(r"^# TYPE octavo:(\w+)", text, re.MULTILINE))
    assert len(names) > 20
    assert {name.removesuffix("_total") for name in names} <= QUOTED


def test_the_readme_names_every_route() -> None:
    readme = (ROOT / "README.md").read_text()
    paths = {path for _, path in OPERATIONS if "{" not in path and not path.startswith(("/v1/kv/", "/reset_"))}
    assert "/v1/batches" in paths and not [path for path in paths if f"`{path}`" not in readme]
