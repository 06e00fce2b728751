"""Documented fields of every route, vLLM's extensions included, that Octavo refuses or ignores, and by what rule.

A field that would change the answer is never dropped silently: unless it holds one of the values listed here, which ask
for what the server does anyway, the request is refused by that field's name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from octavo.server.openai.errors import UnsupportedFieldError

Refused = dict[str, tuple[Any, ...]]
"""Names of fields, each with the values that it may have."""

_TRANSFER: Refused = {
    "kv_transfer_params": (None,),
    "ec_transfer_params": (None,),
    "vllm_xargs": (None, {}),
    "watermarking": (None, False),
}

_MEDIA: Refused = {
    "mm_processor_kwargs": (None, {}),
    "media_io_kwargs": (None, {}),
}

_COMMON: Refused = {
    **_TRANSFER,
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
    "logits_processors": (None, []),
    "spaces_between_special_tokens": (None, True),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "return_weight_versions": (None, False),
    "repetition_detection": (None,),
    "thinking_token_budget": (None, -1),
    "logprob_token_ids": (None,),
}

REFUSED_COMPLETION: Refused = {
    **_COMMON,
    "add_special_tokens": (None, True),
}

REFUSED_CHAT: Refused = {
    **_COMMON,
    **_MEDIA,
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "web_search_options": (None,),
    "verbosity": (None, "medium"),
    "echo": (None, False),
    "add_special_tokens": (None, False),
    "chat_template": (None,),
    "documents": (None, []),
    "return_prompt_text": (None, False),
}

REFUSED_RESPONSES: Refused = {
    **_TRANSFER,
    **_MEDIA,
    "spaces_between_special_tokens": (None, True),
    "include_reasoning": (None, True),
    "previous_input_messages": (None,),
    "enable_response_messages": (None, False),
}

REFUSED_COUNT: Refused = {
    "output_format": (None,),
}

REFUSED_MESSAGES: Refused = {
    **_TRANSFER,
    **REFUSED_COUNT,
}

REFUSED_TOKENIZE: Refused = {
    **_MEDIA,
    "chat_template": (None,),
    "documents": (None, []),
    "truncate_prompt_tokens": (None,),
}

IGNORED = frozenset(
    {"store", "service_tier", "prediction", "prompt_cache_key", "safety_identifier"}
    | {"user", "metadata", "prompt_cache_retention", "prompt_cache_options", "session_id", "stream_interval"}
    | {"truncation_side", "routed_experts_prompt_start", "return_token_offsets", "mm_payload", "return_mm_kwargs"}
    | {"stream_options.include_obfuscation"}
)
"""Fields that cannot change an answer here: hints, labels, choices among one, and what says more about a field that is
refused. Of a field within another, the path."""

IGNORED_RESPONSES = frozenset(
    {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"}
    | {"session_id", "mm_payload", "return_mm_kwargs", "stream_options.include_obfuscation"}
    | {"reasoning.summary", "reasoning.generate_summary"}
)
"""Reasoning comes as it is; there is never a summary of it."""

IGNORED_MESSAGES = frozenset(
    {"metadata", "metadata.user_id", "service_tier", "context_management", "inference_geo", "cache_control"}
    | {"mm_payload", "return_mm_kwargs", "thinking.display", "tools[].cache_control"}
)
"""Prefixes are cached by themselves, and thoughts come as they are."""


def check_other_fields(
    body: dict[str, Any], known: Collection[str], refused: Refused, ignored: Collection[str] = IGNORED
) -> list[str]:
    """The names of unknown fields in `body`.

    Raises:
        UnsupportedFieldError: For a documented field that would change the answer.
    """
    unknown = []
    for name, value in body.items():
        if name in refused:
            if not any(value == harmless and type(value) is type(harmless) for harmless in refused[name]):
                raise UnsupportedFieldError(name)
        elif name not in known and name not in ignored:
            unknown.append(name)
    return unknown
