"""What every handler needs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo import __version__
from octavo.config import HTTPConfig
from octavo.errors import ModelNotFoundError
from octavo.messages import EngineInfo
from octavo.server.lifecycle import Lifecycle
from octavo.server.metrics import ServerMetrics
from octavo.server.parsing import AnswerFormat
from octavo.server.sampling_defaults import NO_DEFAULTS, SamplingDefaults

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

MAX_REPORTED_NAMES = 200
"""Unknown field names that are logged; a client that makes up more is not worth more memory."""

log = logging.getLogger("octavo.server")


@dataclass(frozen=True, slots=True)
class ServerContext:
    """One server's parts. The first model name is the one that answers carry."""

    engine: AsyncEngine
    http: HTTPConfig
    metrics: ServerMetrics
    model_names: tuple[str, ...]
    fingerprint: str
    created: int
    """When the server started, in seconds since the epoch."""
    answer_format: AnswerFormat
    """How the model writes reasoning and tool calls."""
    defaults: SamplingDefaults = NO_DEFAULTS
    """For what requests leave out."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """For chat templates, where requests leave them out."""
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    _reported: set[str] = field(default_factory=set)

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFoundError unless `name` is served here. None asks for whatever is."""
        if name is not None and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise ModelNotFoundError("model", message=f"model {name[:80]!r} is not served here; there is: {served}")

    def report_unknown_fields(self, names: Iterable[str]) -> None:
        """Log each unknown request field once."""
        for name in names:
            name = name[:64]
            if name not in self._reported and len(self._reported) < MAX_REPORTED_NAMES:
                self._reported.add(name)
                log.info("a request has the unknown field %r; it is ignored (said once per name)", name)


def served_names(http: HTTPConfig, info: EngineInfo) -> tuple[str, ...]:
    """The names the model answers to. A path of this machine is never shown: its last part stands for it."""
    if http.served_model_name:
        return http.served_model_name
    name = info.model
    if name.startswith(("/", ".", "~")) or name.endswith(".gguf"):
        name = name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return (name or "model",)


def system_fingerprint(info: EngineInfo, defaults: SamplingDefaults = NO_DEFAULTS) -> str:
    """Changes whenever the same request could have another answer: other program, model, kernels, precision, or other
    values for what it leaves out."""
    parts: tuple[str, ...] = (__version__, info.model, info.kernel_path, info.weight_dtype, info.kv_dtype)
    if defaults != NO_DEFAULTS:
        parts += (defaults.fingerprint(),)
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
