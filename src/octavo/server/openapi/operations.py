"""Every route's types, by method and path."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from octavo.server.anthropic.errors import AnthropicError
from octavo.server.anthropic.protocol import CountReply, CountRequest, Event, MessageReply, MessagesRequest
from octavo.server.auth import KV_STATS_PATH, RESET_PATH
from octavo.server.batches.batch_routes import BatchPage, BatchRequest
from octavo.server.batches.file_routes import FilePage, UploadForm
from octavo.server.batches.files import DeletedFile, FileObject
from octavo.server.batches.records import Batch
from octavo.server.kv import AuditRequest, PublishRequest, ResetRequest
from octavo.server.openai.protocol import ChatRequest, CompletionRequest
from octavo.server.openapi import replies
from octavo.server.responses.protocol import DeletedResponse, InputTokens, ItemPage, Response, ResponsesRequest
from octavo.server.responses.protocol import Event as ResponseEvent
from octavo.server.status import LoadReply, StatusReply, VersionReply
from octavo.server.tokens import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest

JSON = "application/json"
EVENTS = "text/event-stream"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What one method of one path takes and gives."""

    summary: str
    request: Any = None
    """The type of its JSON body."""
    request_type: str = JSON
    may_be_empty: bool = False
    """Whether it may come without a body."""
    reply: Any = None
    """The type of its JSON reply; None for a reply of another kind."""
    reply_type: str = JSON
    event: Any = None
    """The type of an event, where the reply may be a stream."""
    error: Any = replies.ErrorEnvelope
    query: tuple[tuple[str, Any], ...] = ()
    """Names and types of what may stand behind the path."""


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        summary="Answer a conversation", request=ChatRequest, reply=replies.ChatCompletion, event=replies.ChatChunk
    ),
    ("POST", "/v1/completions"): Operation(
        summary="Complete prompts", request=CompletionRequest, reply=replies.Completion, event=replies.Completion
    ),
    ("POST", "/v1/responses"): Operation(
        summary="Answer a conversation, or go on with one",
        request=ResponsesRequest,
        reply=Response,
        event=ResponseEvent,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        summary="Count the tokens of a conversation", request=ResponsesRequest, reply=InputTokens
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        summary="What a response went on from",
        reply=ItemPage,
        query=(("order", Literal["desc", "asc"]), ("limit", int), ("after", str)),
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(summary="A response that was kept", reply=Response),
    ("DELETE", "/v1/responses/{response_id}"): Operation(summary="Forget a response", reply=DeletedResponse),
    ("POST", "/v1/messages"): Operation(
        summary="Answer a conversation, Anthropic's way",
        request=MessagesRequest,
        reply=MessageReply,
        event=Event,
        error=AnthropicError,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        summary="Count the tokens of a conversation", request=CountRequest, reply=CountReply, error=AnthropicError
    ),
    ("GET", "/v1/models"): Operation(summary="The names that the model answers to", reply=replies.ModelList),
    ("GET", "/v1/models/{model_id}"): Operation(summary="One of these names", reply=replies.Model),
    ("GET", "/v1/files"): Operation(
        summary="The caller's files",
        reply=FilePage,
        query=(("purpose", str), ("order", Literal["asc", "desc"]), ("limit", int), ("after", str)),
    ),
    ("POST", "/v1/files"): Operation(
        summary="Upload a file", request=UploadForm, request_type="multipart/form-data", reply=FileObject
    ),
    ("GET", "/v1/files/{file_id}"): Operation(summary="A file", reply=FileObject),
    ("DELETE", "/v1/files/{file_id}"): Operation(summary="Remove a file", reply=DeletedFile),
    ("GET", "/v1/files/{file_id}/content"): Operation(
        summary="What a file holds", reply_type="application/octet-stream"
    ),
    ("GET", "/v1/batches"): Operation(
        summary="The caller's batches", reply=BatchPage, query=(("limit", int), ("after", str))
    ),
    ("POST", "/v1/batches"): Operation(summary="Run a file of requests", request=BatchRequest, reply=Batch),
    ("GET", "/v1/batches/{batch_id}"): Operation(summary="A batch", reply=Batch),
    ("POST", "/v1/batches/{batch_id}/cancel"): Operation(summary="End a batch early", reply=Batch),
    ("POST", "/tokenize"): Operation(
        summary="Token ids of a text or of a conversation", request=TokenizeRequest, reply=TokenizeReply
    ),
    ("POST", "/detokenize"): Operation(
        summary="The text of token ids", request=DetokenizeRequest, reply=DetokenizeReply
    ),
    ("GET", KV_STATS_PATH): Operation(summary="Where every KV block is", reply=replies.KVStatsReply),
    ("GET", "/v1/kv/blocks"): Operation(
        summary="Single KV blocks", reply=replies.KVList, query=(("first", int), ("count", int))
    ),
    ("GET", "/v1/kv/audit"): Operation(summary="Check the block memory", reply=replies.KVAuditReply),
    ("POST", "/v1/kv/audit"): Operation(
        summary="Check the block memory, and mend it",
        request=AuditRequest,
        may_be_empty=True,
        reply=replies.KVAuditReply,
    ),
    ("GET", "/v1/kv/published"): Operation(summary="Published prefixes", reply=replies.KVList),
    ("POST", "/v1/kv/published"): Operation(
        summary="Publish a prefix", request=PublishRequest, reply=replies.KVPublishedReply
    ),
    ("DELETE", "/v1/kv/published/{name}"): Operation(
        summary="Withdraw a published prefix", reply=replies.KVWithdrawnReply
    ),
    ("POST", "/v1/kv/reset"): Operation(
        summary="Forget what is cached", request=ResetRequest, may_be_empty=True, reply=replies.KVResetReply
    ),
    ("POST", RESET_PATH): Operation(
        summary="Forget what is cached", request=ResetRequest, may_be_empty=True, reply=replies.KVResetReply
    ),
    ("GET", "/health"): Operation(summary="Whether requests are served", reply=StatusReply),
    ("GET", "/ready"): Operation(summary="Whether new requests are welcome", reply=StatusReply),
    ("GET", "/ping"): Operation(summary="Whether the process answers", reply=StatusReply),
    ("POST", "/ping"): Operation(summary="Whether the process answers", reply=StatusReply),
    ("GET", "/load"): Operation(summary="How much there is to do", reply=LoadReply),
    ("GET", "/version"): Operation(summary="The version of Octavo", reply=VersionReply),
    ("GET", "/openapi.json"): Operation(summary="This description", reply=dict[str, Any]),
    ("GET", "/metrics"): Operation(summary="Prometheus metrics", reply_type="text/plain"),
}
