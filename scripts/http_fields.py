"""Print docs/http-fields.md, made from the types of the routes and from what their parsers say: `make docs`.

What Octavo does with a field is found by asking: the page says "refused" where the parser refuses every value, and
bounds are in the words of the errors that values beyond them get. Only the column of vLLM is data; see `vllm_fields`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import vllm_fields as vllm
from msgspec import inspect

from octavo.config import HTTPConfig
from octavo.errors import RequestError
from octavo.messages import SamplingParams
from octavo.server.anthropic import protocol as anthropic
from octavo.server.anthropic.routes import CountTokens, Messages
from octavo.server.anthropic.translate import field_name
from octavo.server.batches.batch_routes import CreateBatch
from octavo.server.batches.files import check_purpose
from octavo.server.endpoint import Endpoint
from octavo.server.kv import AuditRequest, PublishRequest, ResetRequest
from octavo.server.openai import fields as tables
from octavo.server.openai.chat import ChatCompletions, chat_params
from octavo.server.openai.completions import Completions, completion_params, split_prompts
from octavo.server.openai.errors import HTTPProblem, UnsupportedFieldError
from octavo.server.openai.protocol import convert
from octavo.server.openai.tools import tool_use
from octavo.server.openapi.operations import OPERATIONS
from octavo.server.responses import protocol as responses
from octavo.server.responses.routes import Responses
from octavo.server.responses.store import ResponseStore
from octavo.server.responses.translate import namer
from octavo.server.tokens import Detokenize, Tokenize
from octavo.server.translated import renamed

HEAD = f"""\
# The HTTP API, field by field

Made from the types and the checks of the server by `make docs`; a test fails when it is out of date. What the fields
mean is in [the HTTP API](http-api.md).

* The type and its bounds are those of a server with default flags. null means the default everywhere.
* Bounds are in the words of the errors that other values get; what stands in quotes is such an error.
* Defaults of sampling are those of a model without a `generation_config.json`.
* `POST /v1/responses/input_tokens` has the fields of `POST /v1/responses`; vLLM has no such route.
* A field that is refused gives a 400 that names it, with the code `unsupported_parameter`.
* A field that is unknown here is named in the log once and ignored.
* The last column compares with vLLM {vllm.VERSION}: "the same" is the same name with the same meaning, default and
  bounds. vLLM logs fields that it does not know at the level debug and ignores them.
"""

WORKS = "works"
IGNORED = "taken, without effect"
UNKNOWN = "unknown here: logged once and ignored"

HTTP = HTTPConfig()
CONTEXT: Any = SimpleNamespace(
    http=HTTP, answer_format=SimpleNamespace(form=SimpleNamespace(tool_parser="hermes", reasoning_parser=None))
)
MESSAGES = [{"role": "user", "content": "Hi"}]


@dataclass
class Route:
    """How a route's requests are read.

    Attributes:
        read: Takes a body, and gives the names of its unknown fields, and the sampling parameters where it has any.
        body: The smallest that is right.
        refused: Documented fields outside the type, with the values that they may have.
        ignored: Fields that change nothing.
    """

    read: Callable[[dict[str, Any]], tuple[list[str], SamplingParams | None]]
    body: dict[str, Any] = field(default_factory=dict)
    refused: tables.Refused = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()


def plain(endpoint: Endpoint[Any]) -> Callable[[dict[str, Any]], tuple[list[str], None]]:
    return lambda body: (endpoint.parse(body)[1], None)


def strict(kind: type[msgspec.Struct]) -> Callable[[dict[str, Any]], tuple[list[str], None]]:
    def read(body: dict[str, Any]) -> tuple[list[str], None]:
        convert(body, kind)
        return [], None

    return read


def read_completion(body: dict[str, Any]) -> tuple[list[str], SamplingParams]:
    request, unknown = Completions(CONTEXT).parse(body)
    split_prompts(request.prompt, HTTP.max_prompts)
    return unknown, completion_params(request)


def read_chat(body: dict[str, Any]) -> tuple[list[str], SamplingParams]:
    request, unknown = ChatCompletions(CONTEXT).parse(body)
    tool_use(CONTEXT, request)
    return unknown, chat_params(request)


def read_response(body: dict[str, Any]) -> tuple[list[str], SamplingParams]:
    asked, unknown = Responses(CONTEXT, ResponseStore(HTTP.max_stored_bytes)).parse(body)
    with renamed(namer(asked.conversation)):
        tool_use(CONTEXT, asked.chat)
        return unknown, chat_params(asked.chat)


def read_messages(body: dict[str, Any]) -> tuple[list[str], SamplingParams]:
    (_, chat), unknown = Messages(CONTEXT).parse(body)
    with renamed(field_name):
        tool_use(CONTEXT, chat)
        return unknown, chat_params(chat)


def read_upload(body: dict[str, Any]) -> tuple[list[str], None]:
    check_purpose(body.get("purpose"))
    return [], None


_ASK = {"model": "m", "messages": MESSAGES}
_GENERATING = {path: None for (_, path), operation in OPERATIONS.items() if operation.event is not None}
_BATCHING: Any = SimpleNamespace(context=CONTEXT, routes=_GENERATING)
_BATCH = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"}

ROUTES: dict[str, Route] = {
    "POST /v1/completions": Route(read_completion, {"prompt": "Hi"}, tables.REFUSED_COMPLETION, tables.IGNORED),
    "POST /v1/chat/completions": Route(read_chat, {"messages": MESSAGES}, tables.REFUSED_CHAT, tables.IGNORED),
    "POST /v1/responses": Route(read_response, {"input": "Hi"}, tables.REFUSED_RESPONSES, tables.IGNORED_RESPONSES),
    "POST /v1/messages": Route(
        read_messages, {**_ASK, "max_tokens": 16}, tables.REFUSED_MESSAGES, tables.IGNORED_MESSAGES
    ),
    "POST /v1/messages/count_tokens": Route(
        plain(CountTokens(CONTEXT)), _ASK, tables.REFUSED_COUNT, tables.IGNORED_MESSAGES
    ),
    "POST /tokenize": Route(plain(Tokenize(CONTEXT)), {"prompt": "Hi"}, tables.REFUSED_TOKENIZE),
    "POST /detokenize": Route(plain(Detokenize(CONTEXT)), {"tokens": [1]}),
    "POST /v1/files": Route(read_upload, {"file": "", "purpose": "batch"}),
    "POST /v1/batches": Route(plain(CreateBatch(_BATCHING)), _BATCH),
    "POST /v1/kv/audit": Route(strict(AuditRequest)),
    "POST /v1/kv/published": Route(strict(PublishRequest), {"name": "n", "text": "t"}),
    "POST /v1/kv/reset": Route(strict(ResetRequest)),
    "POST /reset_prefix_cache": Route(strict(ResetRequest)),
}
"""Those with a body. The input_tokens of responses have the fields of responses."""

COMPANIONS: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "length_penalty": {"beam_width": 2},
    "early_stopping": {"beam_width": 2},
}
"""What some fields have no meaning without."""

EXAMPLES: dict[type[msgspec.Struct], dict[str, Any]] = {
    responses.Tool: {"type": "function", "name": "f"},
    anthropic.Tool: {"name": "f", "input_schema": {}},
}
"""Of objects whose types do not say what must be in them."""

WORDS = {"type": ["function", "custom"], "tool_choice": ["auto", "none"]}
"""Values of texts that mean something."""

_LIMIT_FIELDS = ("max_completion_tokens", "max_output_tokens")
_ECHO = re.compile(r"^(has |holds )?(none|\d+ \w+)[;,] |^expected .*| \(JSON is .*| \(Input data .*")
"""What an error says of the value that it was given, and not of those that may be."""
_MANY = 20_000
"""More than any list may hold, and longer than any short text."""


def described(route: str, kind: type[msgspec.Struct]) -> list[tuple[str, str, str, str, str]]:
    """(field, type, default, what Octavo does, what vLLM has) of every field of a route."""
    how, theirs = ROUTES[route], vllm.REQUESTS.get(route, {})
    params = how.read(how.body)[1]
    rows = []
    for path, item in fields_of(kind):
        does, bounds = effect(how, kind, path, item.type)
        told = any(text.startswith(("an integer", "a finite number")) for text in bounds)
        kind_text = type_text(item.type)
        kind_text = "; ".join(bounds if told and kind_text in ("integer", "number") else [kind_text, *bounds])
        rows.append((path, kind_text, default_text(how, path, item, params), does, compared(theirs, path)))
    own = {path for path, *_ in rows}
    for name, harmless in how.refused.items():
        if name not in own:
            does = f"{refusal(how, name)}; taken: {', '.join(json.dumps(value) for value in harmless)}"
            rows.append((name, "", "", does, compared(theirs, name)))
    for name in sorted(how.ignored - own - set(how.refused)):
        if "." not in name:
            assert not how.read({**how.body, name: "x"})[0], f"{name} is not ignored by {route}"
            rows.append((name, "", "", IGNORED, compared(theirs, name)))
    known = {path for path, *_ in rows}
    for name in theirs:
        if name not in known:
            assert "." in name or name in how.read({**how.body, name: "x"})[0], f"{name} is known to {route}"
            rows.append((name, "", "", UNKNOWN if "." not in name else "ignored", compared(theirs, name)))
    return rows


def fields_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, inspect.Field]]:
    """The fields of a struct, and of structs within, each with its path."""
    for item in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        path = prefix + item.encode_name
        yield path, item
        inner, many = inner_struct(item.type)
        if inner is not None:
            yield from fields_of(inner.cls, path + ("[]." if many else "."))


def inner_struct(kind: inspect.Type) -> tuple[inspect.StructType | None, bool]:
    """The one struct that a field holds, and whether it holds a list of them. Blocks of several kinds are not one."""
    found = [(each, False) for each in options(kind) if isinstance(each, inspect.StructType)]
    for each in options(kind):
        if isinstance(each, inspect.ListType):
            found += [(item, True) for item in options(each.item_type) if isinstance(item, inspect.StructType)]
    found = [(each, many) for each, many in found if each.tag_field is None]
    return found[0] if len(found) == 1 else (None, False)


def options(kind: inspect.Type) -> list[inspect.Type]:
    """The alternatives of a type, null apart."""
    if isinstance(kind, inspect.Metadata):
        return options(kind.type)
    alternatives = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return [each for each in alternatives if not isinstance(each, inspect.NoneType)]


def effect(how: Route, kind: type[msgspec.Struct], path: str, of: inspect.Type) -> tuple[str, list[str]]:
    """What becomes of a field, and in which words its bounds are told."""
    top = re.split(r"[.\[]", path)[0]
    taken: list[Any] = []
    refusals: list[str] = []
    bounds: list[str] = []
    for value in probes(of, path):
        placed = place(inspect.type_info(kind), path, value)
        for beside in ({}, {"stream": True}, COMPANIONS.get(top, {})):
            if not set(beside) <= set(kind.__struct_fields__):
                continue
            try:
                how.read({**how.body, **beside, **placed})
            except UnsupportedFieldError as error:
                if same_field(error, path) and (text := without_value(str(error))) not in refusals:
                    refusals.append(text)
            except RequestError as error:
                if same_field(error, path) and (text := bound(error, path)) not in ("", *bounds):
                    bounds.append(text)
            except HTTPProblem:
                pass  # an id of something that is not kept: the field itself is right
            else:
                taken.append(value)
    if path in how.ignored:
        return IGNORED, bounds
    if not refusals:
        return WORKS, bounds
    said = "refused: " + "; ".join(f'"{text}"' for text in refusals)
    harmless = [value for i, value in enumerate(taken) if value not in taken[:i]]
    if all(not value or value in neutral(path) for value in harmless):
        return said + (f"; taken: {', '.join(json.dumps(value) for value in harmless)}" if harmless else ""), bounds
    return f"{WORKS}; {said}", bounds


def same_field(error: RequestError, path: str) -> bool:
    param = without_value(error.param or "")
    return param == path or param.startswith((path + ".", path + "["))


def without_value(text: str) -> str:
    """An error's text without the places and values of the probe that it was given for."""
    text = re.sub(r"'(x*|None)' ", "", re.sub(r"\[\d+\]", "[]", text))
    return re.sub(r"\.1\b", ".NAME", text)


def bound(error: RequestError, path: str) -> str:
    """What a field must be; in quotes where the error says what it must not. Nothing where the type says it all."""
    param = error.param or ""
    where = "" if without_value(param) == path else f"`{without_value(param)}` "
    if error.allowed is not None:
        return where + error.allowed
    said = str(error).removeprefix(param).removeprefix(":").strip()
    text = without_value(_ECHO.sub("", said))
    return f'{where}"{text}"' if text else ""


def neutral(path: str) -> tuple[Any, ...]:
    """Values that ask for what happens anyway, where the chat has such a field."""
    return tables.REFUSED_CHAT.get(path.rpartition(".")[2], ())


def probes(kind: inspect.Type, path: str) -> list[Any]:
    """Values of a type, within any bounds and beyond."""
    found: list[Any] = [value for value in neutral(path) if isinstance(value, str)]
    found += WORDS.get(path.rpartition(".")[2], [])
    for each in options(kind):
        match each:
            case inspect.BoolType():
                found += [True, False]
            case inspect.IntType():
                found += [1, 2, 0, -1, -2, 10**5, 10**12, -(10**12), 1 << 64]
            case inspect.FloatType():
                found += [0.5, 0.0, -0.5, 1e6, -1e6]
            case inspect.StrType():
                found += ["x", "", "x" * _MANY]
            case inspect.LiteralType():
                found += each.values
            case inspect.ListType():
                inner = probes(each.item_type, "")
                found += [[], *([value] for value in inner[:12]), inner[:1] * _MANY]
            case inspect.DictType():
                inner = probes(each.value_type, "")
                found += [{}, *({"1": value} for value in inner[:5]), {str(i): inner[0] for i in range(1, _MANY)}]
            case inspect.StructType():
                found.append(example(each))
            case inspect.AnyType():
                found += [{"a": 1}, [1], "x"]
    return found


def example(kind: inspect.StructType) -> dict[str, Any]:
    """An object with what must be in it."""
    if kind.cls in EXAMPLES:
        return EXAMPLES[kind.cls]
    made = {item.encode_name: probes(item.type, "")[0] for item in kind.fields if item.required}
    return made if kind.tag_field is None else {kind.tag_field: kind.tag, **made}


def place(kind: Any, path: str, value: Any) -> dict[str, Any]:
    """An object that holds a value at a path."""
    name, _, rest = path.partition(".")
    name, many = name.removesuffix("[]"), name.endswith("[]")
    if not rest:
        return {name: value}
    inner, _ = inner_struct(next(item.type for item in kind.fields if item.encode_name == name))
    assert inner is not None
    held = {**example(inner), **place(inner, rest, value)}
    return {name: [held] if many else held}


def refusal(how: Route, name: str) -> str:
    """The server's words for a field outside the type."""
    try:
        how.read({**how.body, name: "something else"})
    except UnsupportedFieldError as error:
        return f'refused: "{error}"'
    raise AssertionError(f"{name} is taken")


def type_text(kind: inspect.Type) -> str:
    """A type in JSON's words; null apart."""
    return " or ".join(dict.fromkeys(one_type(each) for each in options(kind) if not _is_unset(each)))


def _is_unset(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.CustomType) and kind.cls is msgspec.UnsetType


def one_type(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "boolean"
        case inspect.IntType():
            return "integer" + ("" if kind.ge is None else f" of at least {kind.ge}")
        case inspect.FloatType():
            return "number"
        case inspect.StrType():
            sizes = "" if kind.max_length is None else f" of {kind.min_length or 0} to {kind.max_length} characters"
            return "string" + sizes
        case inspect.LiteralType():
            return " or ".join(f"`{value}`" for value in kind.values)
        case inspect.ListType():
            return f"list of {type_text(kind.item_type)}"
        case inspect.DictType() if not isinstance(kind.value_type, inspect.AnyType):
            return f"object of {type_text(kind.value_type)}"
        case inspect.StructType() if kind.tag is not None:
            return f"`{kind.tag}`"
        case inspect.DictType() | inspect.StructType():
            return "object"
        case _:
            return "any"


def default_text(how: Route, path: str, item: inspect.Field, params: SamplingParams | None) -> str:
    if path in how.body:
        try:
            how.read({name: value for name, value in how.body.items() if name != path})
        except RequestError:
            return "required"
    if item.required:
        return "required"
    name = "max_tokens" if path in _LIMIT_FIELDS else path
    value = getattr(params, name, None) if params is not None else None
    if value is None and name == "max_tokens":
        return "what the context holds"
    return "null" if value is None or value == () else json.dumps(value)


def compared(theirs: vllm.Fields, path: str) -> str:
    return (theirs[path] or "the same") if path in theirs else "not there"


def table(*rows: tuple[str, ...]) -> list[str]:
    """Rows, the first of them the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def section(route: str) -> list[str]:
    operation = OPERATIONS[(route.split()[0], route.split()[1])]
    lines = [f"## {route}", "", operation.summary + ".", ""]
    there = route in vllm.REQUESTS
    if not there:
        lines += ["vLLM has no such route.", ""]
    head = ("field", "type and bounds", "default", "Octavo", f"vLLM {vllm.VERSION}")
    rows = [(f"`{row[0]}`", *row[1:]) for row in described(route, operation.request)]
    width = 5 if there else 4
    lines += [*table(head[:width], *(row[:width] for row in rows)), ""]
    return lines + reply(route)


def reply(route: str) -> list[str]:
    """What a reply holds, where that is compared."""
    theirs = vllm.REPLIES.get(route)
    if theirs is None:
        return []
    method, path = route.split()
    rows = [(name, type_text(item.type)) for name, item in fields_of(OPERATIONS[(method, path)].reply)]
    known = {name for name, _ in rows}
    rows += [(name, "not there") for name in theirs if name not in known]
    head = ("field of the reply", "Octavo", f"vLLM {vllm.VERSION}")
    return [*table(head, *((f"`{name}`", text, compared(theirs, name)) for name, text in rows)), ""]


def other_routes() -> list[str]:
    """Routes without a body, and those that only vLLM has."""
    rows = []
    for (method, path), operation in OPERATIONS.items():
        route = f"{method} {path}"
        if operation.request is None:
            query = ", ".join(f"`{name}` ({type_text(inspect.type_info(kind))})" for name, kind in operation.query)
            there = route in vllm.REQUESTS or route in vllm.SAME_ROUTES
            rows.append((f"`{route}`", query, "there" if there else "not there"))
    only = [(", ".join(f"`{path}`" for path in paths.split(", ")), what) for paths, what in vllm.OTHER_ROUTES.items()]
    return [
        "## Routes without a body",
        "",
        *table(("route", "in the query", f"vLLM {vllm.VERSION}"), *rows),
        "",
        *reply("GET /v1/models"),
        "## Routes that only vLLM has",
        "",
        *table(("route", "what"), *only),
    ]


def main() -> None:
    lines = [HEAD]
    for (method, path), operation in OPERATIONS.items():
        if operation.request is not None and path != "/v1/responses/input_tokens":
            lines += section(f"{method} {path}")
    print("\n".join([*lines, *other_routes()]))


if __name__ == "__main__":
    main()
