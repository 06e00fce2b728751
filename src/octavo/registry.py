"""Names to implementations, resolved when first used.

Built-in entries are "module:attribute" strings, so naming one imports nothing. Other distributions add theirs through
the entry point groups `octavo.backends`, `octavo.executors` and `octavo.drafters`; a name that is itself
"module:attribute" is imported as it stands. Names come from whoever starts the engine, never from a request or a
model's files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_BUILTIN: dict[str, dict[str, str]] = {
    "backends": {
        "cpu": "octavo.backends.cpu:CpuBackend",
        "reference": "octavo.backends.reference:ReferenceBackend",
        "torch": "octavo.backends.torch_eager:TorchBackend",
    },
    "executors": {
        "local": "octavo.executor.local:LocalExecutor",
    },
    "drafters": {
        "ngram": "octavo.worker.drafter:PromptLookupSource",
        "draft_model": "octavo.worker.draft_model:DraftModelSource",
    },
}


def names(kind: str) -> list[str]:
    """Registered names of a kind, built-in first."""
    return [*_BUILTIN[kind], *(entry.name for entry in _entry_points(kind))]


def resolve(kind: str, name: str) -> Any:
    """The object registered as `name`.

    Raises:
        ConfigError: If no such name is registered.
    """
    where = _BUILTIN[kind].get(name, name if ":" in name else None)
    if where is not None:
        module, _, attribute = where.partition(":")
        return _import(kind, name, module, attribute)
    for entry in _entry_points(kind):
        if entry.name == name:
            return entry.load()
    raise ConfigError(kind[:-1], name, "one of " + ", ".join(names(kind)))


def _import(kind: str, name: str, module: str, attribute: str) -> Any:
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        if name in _BUILTIN[kind]:
            raise  # a broken or incomplete installation; the import's own words say what is missing
        raise ConfigError(kind[:-1], name, f"a registered name or an importable module:attribute ({error})") from error


def _entry_points(kind: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # 20 ms that built-in names do without

    return entry_points(group=f"octavo.{kind}")
