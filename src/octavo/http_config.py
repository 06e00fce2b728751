"""Settings of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.settings import check_choices, check_range, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class HTTPConfig:
    """The HTTP server."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "TCP port")
    served_model_name: tuple[str, ...] = setting((), "names the model answers to (default: the MODEL argument)")
    api_key: tuple[str, ...] = setting((), "accepted API keys (also OCTAVO_API_KEY); none means open")
    admin_api_key: str | None = setting(
        None, "key of the /v1/kv admin routes (also OCTAVO_ADMIN_API_KEY); without one they are closed"
    )
    max_beam_width: int = setting(64, "largest beam_width a request may ask for")
    max_logprobs: int = setting(20, "largest logprobs a request may ask for")
    max_n: int = setting(128, "largest n a request may ask for")
    max_body_bytes: int = setting(16 << 20, "largest request body, in bytes")
    max_prompts: int = setting(1024, "prompts in one completions request")
    shutdown_timeout: float = setting(30.0, "seconds that running requests get after SIGTERM")
    stall_timeout: float = setting(
        10.0, "seconds without a step, while there are requests, after which /health says 503"
    )
    log_level: str = setting("info", "log level", choices=("debug", "info", "warning", "error"))
    vllm_metric_names: bool = setting(True, "also export metrics under the vllm: names that routers parse")

    def __post_init__(self) -> None:
        check_choices(self)
        for name, keys in (("api_key", self.api_key), ("admin_api_key", (self.admin_api_key,))):
            if any(key is not None and not key.strip() for key in keys):
                raise ConfigError(name, "", "a text that is not empty")
        check_range("port", self.port, 0, 65535)
        check_range("max_logprobs", self.max_logprobs, 0, 1 << 20)
        check_range("max_n", self.max_n, 1, 1 << 14)
        check_range("max_beam_width", self.max_beam_width, 1, 1 << 10)
        check_range("max_body_bytes", self.max_body_bytes, 1024, 1 << 40, " bytes")
        check_range("max_prompts", self.max_prompts, 1, 1 << 20)
        check_range("shutdown_timeout", self.shutdown_timeout, 0, 1e6, " seconds")
        check_range("stall_timeout", self.stall_timeout, 0.1, 1e6, " seconds")
