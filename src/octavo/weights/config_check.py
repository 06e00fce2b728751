"""Bounds on a model's own numbers, whatever format they came from.

A config is data of a stranger: code behind it sizes lists and tables by these numbers, so each is checked once, here,
before anyone does.
"""

from __future__ import annotations

from typing import Any

from octavo.errors import ModelFileError

_MAX = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 24,
    "sliding_window": 1 << 24,
    "num_experts": 1 << 12,
    "num_local_experts": 1 << 12,
    "num_experts_per_tok": 1 << 12,
    "moe_intermediate_size": 1 << 20,
    "shared_expert_intermediate_size": 1 << 20,
}
"""Largest value of each size; a key may also be absent or null."""
_MAY_BE_0 = ("sliding_window", "num_experts")
"""0 for none, as some families' configs have it."""


def check_config(config: dict[str, Any], file: str, num_tensors: int) -> None:
    """Check the sizes of a Hugging Face config.

    Raises:
        ModelFileError: Naming the key, if a value is not an integer or out of range, or the config tells of more
            layers than the checkpoint has tensors.
    """
    for key, largest in _MAX.items():
        value = config.get(key)
        if value is None or (key in _MAY_BE_0 and value == 0 and value is not False):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
            raise ModelFileError(file, key, f"is {_short(value)}; must be an integer from 1 to {largest}")
    if (config.get("num_hidden_layers") or 0) > num_tensors:
        layers = config["num_hidden_layers"]
        raise ModelFileError(file, "num_hidden_layers", f"is {layers}, but there are only {num_tensors} tensors")
    _check_token_ids(config, file)
    for key in ("rms_norm_eps", "rope_theta"):
        value = config.get(key)
        if value is not None and not _is_positive(value):
            raise ModelFileError(file, key, f"is {_short(value)}; must be a number from 0 to 1e30")


def _check_token_ids(config: dict[str, Any], file: str) -> None:
    """Ids become indices into the logits."""
    vocab_size = config.get("vocab_size")
    for key in ("bos_token_id", "eos_token_id"):
        value = config.get(key)
        for id in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < (vocab_size or 1 << 22):
                raise ModelFileError(file, key, f"is {_short(value)}; the vocabulary has {vocab_size} tokens")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def _short(value: object) -> str:
    return repr(value)[:60]
