"""Everything that is known of a model before it is loaded, by section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo import registry
from octavo.cli.inspect_chat import chat_facts, tokenizer_facts
from octavo.config import EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.measure.model_facts import facts_of_checkpoint, facts_of_config, with_nearest
from octavo.weights.files import JSONObject, is_file, read_json
from octavo.weights.sources import ModelFiles, find, open_checkpoint

Facts = dict[str, Any]


def inspect_model(config: EngineConfig) -> Facts:
    """The sections of a report. No tensor is read.

    Raises:
        ModelError: If there is no such model, a file is damaged, or Octavo lacks something that it needs: the message
            names it, and the nearest thing that is there.
    """
    lone = _lone_config(Path(config.model.model).expanduser())
    if lone is not None:
        facts = facts_of_config(config, read_json(lone, JSONObject))
        facts["model"] = {"name": lone.resolve().parent.name, "format": "config.json alone", **facts["model"]}
        return facts
    files = find(config.model)
    try:
        checkpoint = open_checkpoint(files)
    except UnsupportedModelError as error:
        raise with_nearest(error) from None
    try:
        facts = facts_of_checkpoint(config, checkpoint)
        tokenizer, templates = tokenizer_facts(checkpoint, facts["model"]["eos_token_ids"])
    finally:
        checkpoint.close()
    kind = "GGUF" if files.kind == "gguf" else "safetensors"
    facts["model"] = {"name": files.name, "format": kind, **facts["model"]}
    facts["memory"]["here"] = _here(config, files)
    return {**facts, "tokenizer": tokenizer, "chat": chat_facts(templates)}


def _lone_config(path: Path) -> Path | None:
    """A config.json without weights beside it, given itself or by its folder."""
    if path.suffix == ".json" and is_file(path):
        return path
    weights = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth")
    alone = is_file(path / "config.json") and not any(found for pattern in weights for found in path.glob(pattern))
    return path / "config.json" if alone else None


def _here(config: EngineConfig, files: ModelFiles) -> Facts:
    """What the server would settle on with the memory that is free now."""
    try:
        info, _ = registry.resolve("executors", config.execution.executor).preview(config, files)
    except ConfigError as error:
        if error.field.startswith("hf_overrides"):
            raise
        return {"fits": False, "why": str(error)}
    return {
        "fits": True,
        "served_context": info.max_model_len,
        "kv_pool_bytes": info.kv_bytes,
        "kv_reason": info.kv_reason,
        "max_num_seqs": info.max_num_seqs,
    }
