"""Fields of the OpenAI API and its common extensions that Octavo refuses or ignores, and by what rule.

A field that would change the answer is never dropped silently: unless it holds one of the values listed here, which ask
for what the server does anyway, the request is refused by that field's name.
"""

from __future__ import annotations

from typing import Any

from octavo.server.openai.errors import UnsupportedFieldError

_COMMON: dict[str, tuple[Any, ...]] = {
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
    "kv_transfer_params": (None,),
    "logits_processors": (None, []),
    "spaces_between_special_tokens": (None, True),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "vllm_xargs": (None, {}),
    "repetition_detection": (None,),
}

REFUSED_COMPLETION: dict[str, tuple[Any, ...]] = {
    **_COMMON,
    "add_special_tokens": (None, True),
}

REFUSED_CHAT: dict[str, tuple[Any, ...]] = {
    **_COMMON,
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
    "mm_processor_kwargs": (None, {}),
    "media_io_kwargs": (None, {}),
}

IGNORED = frozenset(
    {"store", "service_tier", "prediction", "prompt_cache_key", "safety_identifier"}
    | {"user", "metadata", "prompt_cache_retention"}
)
"""Fields that cannot change an answer here: hints, labels, and choices among one."""


def check_other_fields(body: dict[str, Any], known: frozenset[str], refused: dict[str, tuple[Any, ...]]) -> list[str]:
    """The names of unknown fields in `body`.

    Raises:
        UnsupportedFieldError: For a documented field that would change the answer.
    """
    unknown = []
    for name, value in body.items():
        if name in refused:
            if not any(value == harmless and type(value) is type(harmless) for harmless in refused[name]):
                raise UnsupportedFieldError(name)
        elif name not in known and name not in IGNORED:
            unknown.append(name)
    return unknown
