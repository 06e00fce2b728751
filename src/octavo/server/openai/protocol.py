"""Requests of the OpenAI API as they arrive: which fields, of which types, within which bounds.

null means the default everywhere, as clients send it for what they leave out. What the sampler itself bounds is checked
by SamplingParams; here are the bounds that belong to the HTTP surface.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import msgspec

from octavo.config import HTTPConfig
from octavo.engine.input_processor import check_cache_salt
from octavo.errors import RequestError
from octavo.messages import SamplingParams
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.openai.fields import REFUSED_CHAT, REFUSED_COMPLETION, Refused, check_other_fields
from octavo.server.openai.structured import structured_outputs
from octavo.server.sampling_defaults import SamplingDefaults
from octavo.server.whole_numbers import with_integers

MAX_STOP_CHARS = 1024
MAX_BAD_WORDS_CHARS = 1 << 16
"""In all of them: each is tokenized twice."""
PRIORITY_LIMIT = 1 << 31

TEMPLATE_KWARGS = frozenset(
    {"enable_thinking", "thinking", "thinking_budget", "reasoning_effort", "date_string", "custom_instructions"}
)
"""What `chat_template_kwargs` may hold: switches that templates in use document. Nothing in it reaches the code that
applies the template, only the template."""

MAX_TEMPLATE_KWARG_CHARS = 2048

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TYPE_ERROR = re.compile(r"(?s)(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?")
_MISSING = re.compile(r"Object missing required field (.*)")
_SOME_ENTRY = "[...]"


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields that both endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    """This and the next three are vLLM's older names for the fields of `structured_outputs`."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    cache_salt: str | None = None
    """Cached KV is shared only among requests that bring the same salt."""
    best_of: int | None = None
    use_beam_search: bool | None = None
    """vLLM's older way to ask for beams: as many as `n`."""
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    request_id: str | None = None
    """Becomes part of the answer's id."""

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def num_beams(self) -> int | None:
        """The width of the search; None when the answer is sampled."""
        return (self.n or 1) if self.beam_width is None and self.use_beam_search else self.beam_width

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


R = TypeVar("R", bound=GenerationRequest)
S = TypeVar("S", bound=msgspec.Struct)


def parse_completion(body: dict[str, Any], http: HTTPConfig) -> tuple[CompletionRequest, list[str]]:
    """The request, and the names of its unknown fields.

    Raises:
        RequestError: Naming the field.
    """
    request, unknown = _parse(body, CompletionRequest, REFUSED_COMPLETION, http)
    check_top(request.logprobs, "logprobs", http)
    if request.max_tokens == 0 and not request.echo:
        raise RequestError("max_tokens", 0, "at least 1, or 0 together with echo")
    if request.suffix and request.echo:
        raise UnsupportedFieldError("echo", "echo is not supported with suffix: the prompt is not one text")
    if request.prompt_logprobs is not None and request.stream:
        raise UnsupportedFieldError("prompt_logprobs", "prompt_logprobs is not supported in a stream; use echo")
    if request.echo and request.logprobs is not None and request.num_beams is not None:
        raise RequestError("echo", True, "false, or without logprobs, with beam_width")
    return request, unknown


def parse_chat(body: dict[str, Any], http: HTTPConfig) -> tuple[ChatRequest, list[str]]:
    """The request, and the names of its unknown fields.

    Raises:
        RequestError: Naming the field.
    """
    request, unknown = _parse(body, ChatRequest, REFUSED_CHAT, http)
    check_top(request.top_logprobs, "top_logprobs", http)
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs", message="top_logprobs needs logprobs to be true")
    if request.prompt_logprobs is not None and request.stream:
        raise UnsupportedFieldError("prompt_logprobs", "prompt_logprobs is not supported in a stream")
    _check_limit(request)
    if request.continue_final_message and request.add_generation_prompt:
        raise RequestError("add_generation_prompt", True, "false or left out with continue_final_message")
    check_template_kwargs(request.chat_template_kwargs or {})
    return request, unknown


def convert(body: dict[str, Any], kind: type[S]) -> S:
    """The body as a struct. Where it takes an integer, it takes 2.0 too.

    Raises:
        RequestError: Naming the field of the wrong type.
    """
    try:
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
        return msgspec.convert(with_integers(body, kind), kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), body) from None


def _parse(body: dict[str, Any], kind: type[R], refused: Refused, http: HTTPConfig) -> tuple[R, list[str]]:
    unknown = check_other_fields(body, frozenset(kind.__struct_fields__), refused)
    request = convert(body, kind)
    _check_common(request, http)
    return request, unknown


def _named(message: str, body: dict[str, Any]) -> RequestError:
    """msgspec's "Expected `int | null`, got `str` - at `$.n`" as an error of that field."""
    match = _TYPE_ERROR.fullmatch(message)
    path = match["path"] if match and match["path"] else None
    what = (match["what"].replace("`", "") if match else message)[:200]  # it may name a field of the client's
    if (missing := _MISSING.fullmatch(what)) is not None:
        field = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(field, message=f"{field}: is missing")
    if path and path.endswith(_SOME_ENTRY):
        path = _entry(body, path.removesuffix(_SOME_ENTRY), what)
    where = f"{path} (a name)" if match and match["key"] else path
    return RequestError(path, message=f"{where}: {what[:1].lower()}{what[1:]}" if where else what)


def _entry(body: dict[str, Any], field: str, what: str) -> str:
    """The first entry of a map that holds what it was not to hold; msgspec leaves its name out."""
    found = body.get(field)
    wrong = what.rpartition("got ")[2]
    names = [name for name, value in found.items() if _json_kind(value) == wrong] if isinstance(found, dict) else []
    return f'{field}["{names[0][:64]}"]' if names else field + _SOME_ENTRY


def _json_kind(value: Any) -> str:
    return {type(None): "null", dict: "object", list: "array"}.get(type(value), type(value).__name__)


def _check_common(request: GenerationRequest, http: HTTPConfig) -> None:
    if request.n is not None and not 1 <= request.n <= http.max_n:
        raise RequestError("n", request.n, f"an integer from 1 to {http.max_n} (--max-n)")
    _check_best_of(request, http)
    _check_beams(request, http)
    check_top(request.prompt_logprobs, "prompt_logprobs", http)
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > http.max_stop:
        why = f"holds {len(stops)} strings; at most {http.max_stop} are allowed (--max-stop)"
        raise RequestError("stop", message=f"stop: {why}")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise RequestError("stop", message=f"stop: a string is longer than {MAX_STOP_CHARS} characters")
    if any(len(word) > MAX_STOP_CHARS for word in request.bad_words or ()):
        raise RequestError("bad_words", message=f"bad_words: a text is longer than {MAX_STOP_CHARS} characters")
    if (num_chars := sum(map(len, request.bad_words or ()))) > MAX_BAD_WORDS_CHARS:
        why = f"the texts have {num_chars} characters in all; at most {MAX_BAD_WORDS_CHARS} are allowed"
        raise RequestError("bad_words", message=f"bad_words: {why}")
    for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"):
        if (count := len(getattr(request, name) or ())) > http.max_list:
            why = f"holds {count} entries; at most {http.max_list} are allowed (--max-list)"
            raise RequestError(name, message=f"{name}: {why}")
    if request.priority is not None and abs(request.priority) >= PRIORITY_LIMIT:
        raise RequestError("priority", request.priority, "an integer above -2^31 and below 2^31")
    check_cache_salt(request.cache_salt)
    if request.request_id is not None and _REQUEST_ID.fullmatch(request.request_id) is None:
        raise RequestError("request_id", request.request_id, "1 to 128 characters of A-Z a-z 0-9 . _ : -")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options", message="stream_options is allowed only when stream is true")
    if http.enable_force_include_usage and request.stream:
        request.stream_options = msgspec.structs.replace(request.stream_options or StreamOptions(), include_usage=True)


def _check_best_of(request: GenerationRequest, http: HTTPConfig) -> None:
    drawn, returned = request.best_of, request.n or 1
    if drawn is None:
        return
    if not returned <= drawn <= http.max_n:
        raise RequestError("best_of", drawn, f"an integer from n ({returned}) to {http.max_n} (--max-n)")
    if request.stream and drawn > returned:
        message = "best_of above n is not supported in a stream: which answers are best is known at their end"
        raise UnsupportedFieldError("best_of", message)


def _check_beams(request: GenerationRequest, http: HTTPConfig) -> None:
    if request.beam_width is not None and request.use_beam_search is False:
        raise RequestError("use_beam_search", False, "true or left out with beam_width")
    width = request.num_beams
    if width is None:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            value = getattr(request, name)
            if value is not None and value != neutral:
                raise RequestError(name, value, "left out without beam_width")
    elif not 1 <= width <= http.max_beam_width:
        raise RequestError("beam_width", width, f"an integer from 1 to {http.max_beam_width} (--max-beam-width)")


def check_top(count: int | None, name: str, http: HTTPConfig) -> None:
    """How many of the likeliest tokens may be asked for."""
    if count is not None and not 0 <= count <= http.max_logprobs:
        raise RequestError(name, count, f"an integer from 0 to {http.max_logprobs} (--max-logprobs)")


def _check_limit(request: ChatRequest) -> None:
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise RequestError("max_completion_tokens", new, f"equal to max_tokens ({old}) when both are given")
    for name in ("max_completion_tokens", "max_tokens"):
        value = getattr(request, name)
        if value is not None and not 1 <= value < 1 << 31:
            raise RequestError(name, value, "an integer from 1 to 2147483647")


def check_template_kwargs(kwargs: dict[str, Any]) -> None:
    """Raises RequestError, naming what a template is not given."""
    for name, value in kwargs.items():
        where = f"chat_template_kwargs.{name[:64]}"
        if name not in TEMPLATE_KWARGS:
            raise RequestError(
                where, message=f"{where}: is not allowed; allowed are: {', '.join(sorted(TEMPLATE_KWARGS))}"
            )
        if value is not None and not isinstance(value, bool | int | float | str):
            raise RequestError(where, value, "a string, number, boolean or null")
        if isinstance(value, str) and len(value) > MAX_TEMPLATE_KWARG_CHARS:
            raise RequestError(where, message=f"{where}: is longer than {MAX_TEMPLATE_KWARG_CHARS} characters")


_AS_THEY_ARE = (
    "n",
    "best_of",
    "length_penalty",
    "early_stopping",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "min_tokens",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


def sampling_params(request: GenerationRequest, defaults: SamplingDefaults, **own: Any) -> SamplingParams:
    """The request's sampling parameters, with `defaults` for what it leaves out; a search has no use for them. `own`
    are the fields that the two endpoints spell differently.

    Raises:
        RequestError: When a field is out of range.
    """
    given = {} if request.num_beams is not None else dict(defaults.values)
    given |= {name: value for name in _AS_THEY_ARE if (value := getattr(request, name)) is not None}
    if request.stop is not None:
        given["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.logit_bias:
        given["logit_bias"] = {_token_id(key): bias for key, bias in request.logit_bias.items()}
    if (structured := structured_outputs(request)) is not None:
        given["structured_outputs"] = structured
    return SamplingParams(**{**given, "beam_width": request.num_beams, **own})


def _token_id(key: str) -> int:
    """The id that a key of `logit_bias` is, in the one spelling that JSON has for it: "05" would be "5" again."""
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key):
        raise RequestError("logit_bias", key, "a map from token ids (integers of at least 0) to numbers")
    return int(key)
