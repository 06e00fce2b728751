"""Octavo: LLM serving on paged KV memory.

Public names load on first use, so that `import octavo` stays fast and pulls in nothing it does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "ModelError",
    "OctavoError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_WHERE = {
    "LLM": "octavo.engine.llm",
    "AsyncEngine": "octavo.engine.async_engine",
    "SamplingParams": "octavo.messages",
    "StructuredOutputsParams": "octavo.structured",
    "RequestOutput": "octavo.engine.outputs",
    "CompletionOutput": "octavo.engine.outputs",
    "EngineConfig": "octavo.config",
    "OctavoError": "octavo.errors",
    "ConfigError": "octavo.errors",
    "RequestError": "octavo.errors",
    "ModelError": "octavo.errors",
}

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.llm import LLM
    from octavo.engine.outputs import CompletionOutput, RequestOutput
    from octavo.errors import ConfigError, ModelError, OctavoError, RequestError
    from octavo.messages import SamplingParams
    from octavo.structured import StructuredOutputsParams


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
