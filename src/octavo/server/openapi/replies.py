"""The shapes of replies that are written without a type, because they are written once per token.

Tests hold them to what the server sends.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct):
    """Every refusal, but those of /v1/messages."""

    error: ErrorBody


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class MessageToolCall(msgspec.Struct):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | None
    refusal: str | None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    """The same as `reasoning`."""
    tool_calls: list[MessageToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatCompletion(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunkChoice(msgspec.Struct, omit_defaults=True):
    index: int
    delta: dict[str, Any]
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET


class ChatChunk(msgspec.Struct):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class CompletionChoice(msgspec.Struct, omit_defaults=True):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET


class Completion(msgspec.Struct):
    """Also the chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class KVStatsReply(msgspec.Struct):
    """Counts of blocks, in all and by tenant; see the documentation."""

    object: Literal["kv.stats"]
    num_blocks: int
    num_held_blocks: int
    num_cached_blocks: int
    num_free_blocks: int
    accounts: list[dict[str, Any]]
    totals: dict[str, int]


class KVList(msgspec.Struct):
    object: Literal["list"]
    data: list[dict[str, Any]]


class KVAuditReply(msgspec.Struct):
    object: Literal["kv.audit"]
    sound: bool
    broken: list[str]
    left: list[str]
    repaired: bool


class KVResetReply(msgspec.Struct):
    object: Literal["kv.reset"]
    num_freed_blocks: int


class KVPublishedReply(msgspec.Struct):
    object: Literal["kv.published"]
    name: str
    num_tokens: int
    num_blocks: int


class KVWithdrawnReply(msgspec.Struct):
    object: Literal["kv.published"]
    name: str
    withdrawn: bool
