"""What vLLM's server has, for docs/http-fields.md: names of fields, each with what differs there.

Read off the request and reply models of the release named here (`vllm/entrypoints/**/protocol.py` and
`vllm/sampling_params.py`). An empty note says that the field is there with the same meaning, default and bounds.
"""

from __future__ import annotations

VERSION = "0.33.0"

Fields = dict[str, str]

_SAMPLING: Fields = {
    "model": "",
    "stream": "",
    "stream_options": "",
    "stream_options.include_usage": "",
    "stream_options.continuous_usage_stats": "",
    "n": "up to 16384 (`VLLM_MAX_N_SEQUENCES`)",
    "min_tokens": "",
    "temperature": "at most 2",
    "top_p": "above 0, at most 1",
    "top_k": "",
    "min_p": "",
    "presence_penalty": "",
    "frequency_penalty": "",
    "repetition_penalty": "above 0, without another bound",
    "seed": "",
    "stop": "at most 4 strings (`VLLM_MAX_STOP_STRINGS`)",
    "stop_token_ids": "",
    "ignore_eos": "",
    "logit_bias": "what is beyond -100 or 100 is moved there, not refused",
    "allowed_token_ids": "",
    "bad_words": "at most 128 (`VLLM_MAX_NUM_BAD_WORDS`)",
    "response_format": "",
    "structured_outputs": "",
    "include_stop_str_in_output": "",
    "skip_special_tokens": "",
    "prompt_logprobs": "-1 too: all tokens",
    "logprob_token_ids": "logprobs of these tokens at each place",
    "priority": "64 bits; as here, other than 0 only with priority scheduling",
    "user": "as here, without effect",
    "cache_salt": "1 to 1024 characters",
    "use_beam_search": "",
    "length_penalty": "taken without beams too, and then without effect",
    "request_id": "any text; the engine uses it as well",
    "watermarking": "marks the answer",
    "spaces_between_special_tokens": "",
    "truncate_prompt_tokens": "cuts the prompt to so many tokens; -1: to the context",
    "truncation_side": "the side that `truncate_prompt_tokens` cuts",
    "session_id": "names a conversation",
    "return_tokens_as_token_ids": "tokens of logprobs as `token_id:7`",
    "return_token_ids": "ids of prompt and answer in the reply",
    "return_weight_versions": "which weights made which tokens",
    "routed_experts_prompt_start": "first token whose experts are told",
    "return_token_offsets": "only for `/render`; otherwise without effect",
    "mm_payload": "only for `/render`",
    "return_mm_kwargs": "older name of `mm_payload`",
    "kv_transfer_params": "for prefill and decode on different machines",
    "ec_transfer_params": "for encoders on machines of their own",
    "vllm_xargs": "for extensions",
    "repetition_detection": "ends answers that repeat themselves",
    "thinking_token_budget": "ends the reasoning after so many tokens",
    "stream_interval": "tokens in an event of this stream",
    "add_special_tokens": "",
    "guided_json": "removed: logged, and the answer obeys nothing",
    "guided_regex": "removed: logged, and the answer obeys nothing",
    "guided_choice": "removed: logged, and the answer obeys nothing",
    "guided_grammar": "removed: logged, and the answer obeys nothing",
}

_TRANSFER = (
    *("watermarking", "kv_transfer_params", "ec_transfer_params", "vllm_xargs"),
    *("mm_payload", "return_mm_kwargs"),
)
"""Those of the sampling fields that /v1/messages takes too."""

_MEDIA: Fields = {
    "media_io_kwargs": "for images, audio and video",
    "mm_processor_kwargs": "for images, audio and video",
}

_MESSAGES: Fields = {
    "model": "",
    "messages": "with images too",
    "messages[].role": "",
    "messages[].content": "with images too",
    "system": "",
    "tools": "",
    "tools[].name": "",
    "tools[].description": "",
    "tools[].input_schema": "",
    "tools[].strict": "",
    "tools[].defer_loading": "a tool that is loaded when it is found",
    "tool_choice": "",
    "tool_choice.type": "",
    "tool_choice.name": "",
    "tool_choice.disable_parallel_tool_use": "",
    "thinking": "",
    "thinking.type": "",
    "thinking.budget_tokens": "at least 1024",
    "thinking.display": "summarized or omitted",
    "output_config": "",
    "output_config.format": "",
    "output_config.format.type": "",
    "output_config.format.schema": "",
    "output_config.effort": "one of its list of words",
    "chat_template_kwargs": "any names",
}

REQUESTS: dict[str, Fields] = {
    "POST /v1/completions": {
        **_SAMPLING,
        "prompt": "at most 1024 (`VLLM_MAX_COMPLETION_PROMPTS`)",
        "max_tokens": "",
        "suffix": "",
        "echo": "",
        "logprobs": "-1 too: all tokens",
        "prompt_embeds": "embeddings in the place of a prompt",
    },
    "POST /v1/chat/completions": {
        **_SAMPLING,
        **_MEDIA,
        "messages": "with images, audio and video too",
        "max_tokens": "",
        "max_completion_tokens": "goes before `max_tokens`; both may be given",
        "logprobs": "",
        "top_logprobs": "-1 too: all tokens",
        "add_generation_prompt": "",
        "continue_final_message": "",
        "chat_template_kwargs": "any names",
        "chat_template": "a template of the request's own, where the server allows it",
        "documents": "for templates that take them",
        "reasoning_effort": "none, minimal, low, medium, high, xhigh or max",
        "include_reasoning": "",
        "tools": "an empty list is refused",
        "tool_choice": "without `allowed_tools`; `auto` needs `--enable-auto-tool-choice`",
        "parallel_tool_calls": "",
        "echo": "the last message before the answer",
        "return_prompt_text": "the prompt as the template wrote it",
    },
    "POST /v1/responses": {
        **_MEDIA,
        **{
            name: _SAMPLING[name]
            for name in (
                *("model", "stream", "temperature", "top_p", "top_k"),
                *("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
                *("stop", "stop_token_ids", "ignore_eos", "logit_bias", "priority"),
                *("cache_salt", "user", "structured_outputs", "include_stop_str_in_output", "skip_special_tokens"),
                *(
                    "spaces_between_special_tokens",
                    "watermarking",
                    "kv_transfer_params",
                    "ec_transfer_params",
                    "vllm_xargs",
                ),
                *("session_id", "mm_payload", "return_mm_kwargs"),
            )
        },
        "input": "with images and files too",
        "instructions": "",
        "previous_response_id": "needs `VLLM_ENABLE_RESPONSES_API_STORE=1`",
        "store": "true, but without effect unless `VLLM_ENABLE_RESPONSES_API_STORE=1`",
        "max_output_tokens": "",
        "top_logprobs": "-1 too: all tokens",
        "include": "OpenAI's list",
        "tools": "built-in and MCP tools too",
        "tools[].type": "built-in and MCP tools too",
        "tools[].name": "",
        "tools[].description": "",
        "tools[].parameters": "",
        "tools[].strict": "",
        "tool_choice": "",
        "parallel_tool_calls": "",
        "text": "",
        "text.format": "",
        "text.format.type": "",
        "text.format.name": "",
        "text.format.description": "",
        "text.format.schema": "",
        "text.format.strict": "",
        "text.verbosity": "taken, without effect",
        "reasoning": "",
        "reasoning.effort": "",
        "reasoning.summary": "as here, without effect",
        "reasoning.generate_summary": "as here, without effect",
        "truncation": "auto too",
        "metadata": "",
        "safety_identifier": "as here, without effect",
        "prompt_cache_key": "as here, without effect",
        "prompt_cache_options": "may warm the cache",
        "prompt_cache_retention": "as here, without effect",
        "service_tier": "as here, without effect",
        "background": "with `store`",
        "prompt": "refused",
        "max_tool_calls": "for built-in tools",
        "chat_template_kwargs": "any names",
        "include_reasoning": "false leaves the reasoning out",
        "request_id": "becomes the id of the response",
        "enable_response_messages": "the messages as the model saw them, in the reply",
        "previous_input_messages": "gpt-oss messages in the place of a response kept",
    },
    "POST /v1/messages": {
        **_MESSAGES,
        "max_tokens": "",
        "stream": "",
        "stop_sequences": "at most 4 (`VLLM_MAX_STOP_STRINGS`)",
        "temperature": "at most 2",
        "top_p": "above 0, at most 1",
        "top_k": "",
        "metadata": "as here, without effect",
        "cache_salt": "1 to 1024 characters",
        **{name: _SAMPLING[name] for name in _TRANSFER},
    },
    "POST /v1/messages/count_tokens": _MESSAGES,
    "GET /v1/models": {},
    "POST /tokenize": {
        **_MEDIA,
        "model": "",
        "prompt": "",
        "messages": "with images, audio and video too",
        "tools": "",
        "add_special_tokens": "with messages too, and then false",
        "add_generation_prompt": "",
        "continue_final_message": "",
        "chat_template_kwargs": "any names",
        "chat_template": "a template of the request's own",
        "return_token_strs": "",
    },
    "POST /detokenize": {"model": "", "tokens": ""},
    "GET /v1/responses/{response_id}": {},
    "POST /reset_prefix_cache": {},
}
"""By method and path. A route that is not here is not there."""

SAME_ROUTES = (
    "GET /health",
    "GET /ping",
    "POST /ping",
    "GET /load",
    "GET /version",
    "GET /metrics",
    "GET /openapi.json",
)
"""Routes without fields that are there too."""

OTHER_ROUTES = {
    "/v1/embeddings, /v2/embed, /pooling, /classify, /score, /v1/score, /rerank, /v1/rerank, /v2/rerank": "models that "
    "embed, classify and rank",
    "/v1/audio/transcriptions, /v1/audio/translations, /v1/realtime": "models that hear",
    "/v1/responses/{response_id}/cancel": "ends a response in the background",
    "/v1/chat/completions/batch": "several conversations in one request",
    "/v1/completions/render, /v1/chat/completions/render, /v1/messages/render, /v1/responses/render": "the prompt, and "
    "no answer",
    "/v1/completions/derender, /v1/chat/completions/derender": "a reply from token ids",
    "/inference/v1/generate": "token ids for token ids",
    "/v1/decisions, /generative_scoring": "scores of given answers",
    "/v1/load_lora_adapter, /v1/unload_lora_adapter": "adapters, with `VLLM_ALLOW_RUNTIME_LORA_UPDATING`",
    "/tokenizer_info": "the tokenizer's configuration, with a flag",
    "/sleep, /wake_up, /is_sleeping, /collective_rpc, /server_info": "with `VLLM_SERVER_DEV_MODE`",
    "/pause, /resume, /is_paused, /update_weights": "for training that serves",
}
"""Routes that Octavo has not."""

_MODEL = ("id", "object", "created", "owned_by", "root", "parent", "max_model_len")
_TOKENS = ("routed_experts", "weight_versions")

_USAGE: Fields = {
    "usage": "",
    "usage.prompt_tokens": "",
    "usage.completion_tokens": "",
    "usage.total_tokens": "",
    "usage.prompt_tokens_details": "with `--enable-prompt-tokens-details`",
    "usage.prompt_tokens_details.cached_tokens": "",
    "usage.prompt_tokens_details.created_cache_tokens": "tokens that the cache took up",
    "usage.prompt_tokens_details.multimodal_tokens": "tokens of images and the like",
    "usage.completion_tokens_details": "",
    "usage.completion_tokens_details.reasoning_tokens": "",
}
_HEAD: Fields = dict.fromkeys(("id", "object", "created", "model", "system_fingerprint", "choices"), "")
_CALLS = ("tool_calls", "tool_calls[].id", "tool_calls[].type", "tool_calls[].function")
_FUNCTION = ("tool_calls[].function.name", "tool_calls[].function.arguments")

REPLIES: dict[str, Fields] = {
    "POST /v1/completions": {
        **_HEAD,
        **_USAGE,
        **{f"choices[].{name}": "" for name in ("index", "text", "logprobs", "finish_reason", "stop_reason")},
        **{
            f"choices[].{name}": "with a field that asks for it" for name in ("token_ids", "prompt_token_ids", *_TOKENS)
        },
        "choices[].prompt_logprobs": "with the field of the request",
        "service_tier": "null",
        "kv_transfer_params": "with a connector",
        "ec_transfer_params": "with a connector",
        "metrics": "with a flag",
    },
    "POST /v1/chat/completions": {
        **_HEAD,
        **_USAGE,
        **{f"choices[].{name}": "" for name in ("index", "message", "logprobs", "finish_reason", "stop_reason")},
        **{f"choices[].message.{name}": "" for name in ("role", "content", "refusal", "reasoning")},
        **{f"choices[].message.{name}": "" for name in (*_CALLS, *_FUNCTION)},
        **{f"choices[].message.{name}": "null" for name in ("annotations", "audio", "function_call")},
        **{f"choices[].{name}": "with a field that asks for it" for name in ("token_ids", *_TOKENS)},
        "prompt_logprobs": "with the field of the request",
        "prompt_token_ids": "with `return_token_ids`",
        "prompt_text": "with `return_prompt_text`",
        "service_tier": "null",
        "kv_transfer_params": "with a connector",
        "ec_transfer_params": "with a connector",
        "metrics": "with a flag",
    },
    "GET /v1/models": {
        "object": "",
        "data": "",
        **{f"data[].{name}": "" for name in _MODEL},
        "data[].permission": "a list of what OpenAI's had once",
    },
    "POST /tokenize": dict.fromkeys(("count", "max_model_len", "tokens", "token_strs"), ""),
    "POST /detokenize": {"prompt": ""},
}
"""By method and path, of those that are compared."""
