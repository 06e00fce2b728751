"""Settings of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.settings import check_choices, check_range, setting

_KEYS = "Keys: who may call"
_LIMITS = "Limits of requests and connections"
_ANSWERS = "Answers: tools and reasoning"
_SAMPLING = "Sampling: what requests leave out"
_STREAMS = "Event streams"

TOOL_CALL_PARSERS = (
    *("auto", "none", "hermes", "llama3_json", "llama4_json", "pythonic", "llama4_pythonic", "mistral", "granite"),
    *("phi4_mini_json", "openai"),
)
REASONING_PARSERS = ("auto", "none", "deepseek_r1", "qwen3", "mistral", "gpt_oss", "openai_gptoss")


@dataclass(frozen=True, kw_only=True, slots=True)
class HTTPConfig:
    """The HTTP server."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "TCP port; 0 takes a free one")
    uds: str | None = setting(None, "path of a Unix domain socket to listen on, instead of host and port")
    ssl_keyfile: str | None = setting(None, "private key in PEM; with --ssl-certfile the server speaks HTTPS")
    ssl_certfile: str | None = setting(None, "certificate chain in PEM")
    served_model_name: tuple[str, ...] = setting((), "names the model answers to (default: the MODEL argument)")
    seed: int | None = setting(None, "fixes the seeds of requests without one, in their order (default: drawn)")
    allowed_origins: tuple[str, ...] = setting(
        (), "web origins whose pages may call this server, * for all (default: none)"
    )
    allowed_methods: tuple[str, ...] = setting(("GET", "POST", "DELETE"), "methods that such pages may use")
    allowed_headers: tuple[str, ...] = setting(("*",), "headers that such pages may send")
    files_dir: str | None = setting(
        None, "folder for files and batches, kept over restarts; without one there are none"
    )
    chat_page: bool = setting(True, "serve a chat page at /")
    shutdown_timeout: float = setting(30.0, "seconds that running requests get after SIGTERM")
    stall_timeout: float = setting(
        10.0, "seconds without a step, while there are requests, after which /health says 503"
    )
    log_level: str = setting("info", "log level", choices=("debug", "info", "warning", "error"))
    vllm_metric_names: bool = setting(True, "also export metrics under the vllm: names that routers parse")

    api_key: tuple[str, ...] = setting((), "accepted API keys (also OCTAVO_API_KEY); none means open", section=_KEYS)
    api_key_file: str | None = setting(
        None, "file of API keys, a line each: TENANT KEY, or TENANT sha256:DIGEST, then max_requests=N", section=_KEYS
    )
    admin_api_key: str | None = setting(
        None,
        "key of the /v1/kv admin routes (also OCTAVO_ADMIN_API_KEY); without one they are closed",
        section=_KEYS,
    )

    enable_auto_tool_choice: bool = setting(
        True,
        "let the model choose whether to call a tool; off refuses requests that leave it the choice",
        section=_ANSWERS,
    )
    tool_call_parser: str = setting(
        "auto",
        "how the model writes tool calls; auto goes by its chat template, none leaves them in the text",
        choices=TOOL_CALL_PARSERS,
        section=_ANSWERS,
    )
    reasoning_parser: str = setting(
        "auto",
        "how the model writes its reasoning; auto goes by its chat template, none leaves it in the text",
        choices=REASONING_PARSERS,
        section=_ANSWERS,
    )
    default_chat_template_kwargs: str = setting(
        "{}", "JSON object of chat_template_kwargs for requests that leave them out", section=_ANSWERS
    )

    generation_config: str = setting(
        "auto",
        "where sampling defaults come from: auto (the model's generation_config.json), vllm (nowhere), or a folder",
        section=_SAMPLING,
    )
    override_generation_config: str = setting(
        "{}", "JSON object of sampling defaults, before those of any file", section=_SAMPLING
    )

    enable_force_include_usage: bool = setting(
        False, "end every stream with its usage, whether or not stream_options ask for it", section=_STREAMS
    )
    sse_keep_alive_interval: float = setting(
        0.0, "seconds without anything to send after which a stream gets a comment; 0 sends none", section=_STREAMS
    )
    stream_interval: int = setting(1, "tokens in one event of a stream, after the first", section=_STREAMS)

    max_connections: int = setting(4096, "connections at once; more get 503", section=_LIMITS)
    max_header_bytes: int = setting(64 << 10, "request line and headers, in bytes", section=_LIMITS)
    max_body_bytes: int = setting(16 << 20, "largest request body, in bytes", section=_LIMITS)
    read_timeout: float = setting(
        60.0, "seconds for a request's headers to arrive; its body has ten times as many", section=_LIMITS
    )
    write_timeout: float = setting(
        60.0, "seconds that a client may leave its answer unread before it is dropped", section=_LIMITS
    )
    max_unread_bytes: int = setting(
        64 << 10, "bytes kept for a client that does not read, and as many again in the kernel", section=_LIMITS
    )
    request_timeout: float = setting(
        1800.0, "seconds that a request may take, waiting included; then it is cut off", section=_LIMITS
    )
    max_tenant_requests: int | None = setting(
        None, "requests of one tenant at once; more get 429 (default: no limit)", section=_LIMITS
    )
    max_file_bytes: int = setting(100 << 20, "largest file that may be uploaded, in bytes", section=_LIMITS)
    max_files_bytes: int = setting(1 << 30, "all files together, in bytes; more are refused", section=_LIMITS)
    max_stored_bytes: int = setting(
        64 << 20, "memory for responses that previous_response_id may name; 0 keeps none", section=_LIMITS
    )
    max_prompts: int = setting(1024, "prompts in one completions request", section=_LIMITS)
    max_prompt_tokens: int = setting(1 << 20, "tokens in all prompts of one request", section=_LIMITS)
    max_n: int = setting(128, "largest n a request may ask for", section=_LIMITS)
    max_beam_width: int = setting(64, "largest beam_width a request may ask for", section=_LIMITS)
    max_logprobs: int = setting(20, "largest logprobs a request may ask for", section=_LIMITS)
    max_stop: int = setting(64, "stop strings in one request", section=_LIMITS)
    max_list: int = setting(
        1024, "entries of a request's stop_token_ids, logit_bias, allowed_token_ids and bad_words", section=_LIMITS
    )

    def __post_init__(self) -> None:
        check_choices(self)
        for name, keys in (("api_key", self.api_key), ("admin_api_key", (self.admin_api_key,))):
            if any(key is not None and not key.strip() for key in keys):
                raise ConfigError(name, "", "a text that is not empty")
        for name, low, high, unit in _RANGES:
            check_range(name, getattr(self, name), low, high, unit)
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            name = "ssl_keyfile" if self.ssl_keyfile is None else "ssl_certfile"
            raise ConfigError(name, None, "given together with its counterpart")


_RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("port", 0, 65535, ""),
    ("shutdown_timeout", 0, 1e6, " seconds"),
    ("stall_timeout", 0.1, 1e6, " seconds"),
    ("sse_keep_alive_interval", 0, 1e6, " seconds"),
    ("stream_interval", 1, 1 << 20, " tokens"),
    ("max_connections", 1, 1 << 20, ""),
    ("max_header_bytes", 1024, 1 << 24, " bytes"),
    ("max_body_bytes", 1024, 1 << 40, " bytes"),
    ("read_timeout", 0.1, 1e6, " seconds"),
    ("write_timeout", 0.1, 1e6, " seconds"),
    ("max_unread_bytes", 1024, 1 << 30, " bytes"),
    ("request_timeout", 0.1, 1e9, " seconds"),
    ("max_tenant_requests", 1, 1 << 20, ""),
    ("max_prompts", 1, 1 << 20, ""),
    ("max_prompt_tokens", 1, 1 << 30, " tokens"),
    ("max_file_bytes", 1, 1 << 40, " bytes"),
    ("max_files_bytes", 1, 1 << 50, " bytes"),
    ("max_stored_bytes", 0, 1 << 40, " bytes"),
    ("max_n", 1, 1 << 14, ""),
    ("max_beam_width", 1, 1 << 10, ""),
    ("max_logprobs", 0, 1 << 20, ""),
    ("max_stop", 1, 1 << 14, ""),
    ("max_list", 1, 1 << 20, ""),
)
