"""Requests and replies of /v1/messages: which fields, of which types.

null means that a field is left out. Bounds that are those of a chat are checked where chats are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Block(msgspec.Struct, kw_only=True, tag_field="type"):
    """A part of a message."""

    cache_control: dict[str, Any] | None = None
    """Without effect: prefixes are cached by themselves."""


class TextBlock(Block, tag="text"):
    text: str
    citations: list[Any] | None = None


class ImageBlock(Block, tag="image"):
    source: Any = None


class DocumentBlock(Block, tag="document"):
    source: Any = None


class SearchResultBlock(Block, tag="search_result"):
    content: Any = None


class ThinkingBlock(Block, tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block, tag="redacted_thinking"):
    data: str | None = None


class ToolUseBlock(Block, tag="tool_use"):
    id: Name
    name: Name
    input: dict[str, Any]


class ToolResultBlock(Block, tag="tool_result"):
    tool_use_id: Name
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None


ContentBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class Message(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class Tool(msgspec.Struct, kw_only=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    display: str | None = None


class JSONFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    format: JSONFormat | None = None
    effort: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Not Anthropic's; it means what it does in a chat, and goes before what `thinking` says."""


class Metadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    cache_salt: str | None = None
    """Not Anthropic's; it means what it does in a chat."""
    service_tier: str | None = None
    context_management: Any = None
    inference_geo: Any = None


class Usage(msgspec.Struct, kw_only=True):
    input_tokens: int
    """Of the prompt, but for those that were found in the prefix cache."""
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class TextContent(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingContent(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class ToolUseContent(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessageReply(msgspec.Struct, kw_only=True):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage


class CountReply(msgspec.Struct, kw_only=True):
    input_tokens: int


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event of a stream, by its type."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
    message: MessageReply | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET
    content_block: TextContent | ThinkingContent | ToolUseContent | msgspec.UnsetType = msgspec.UNSET
    delta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
