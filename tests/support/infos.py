"""What a tiny engine would say of itself."""

from __future__ import annotations

from typing import Any

from octavo.messages import EngineInfo

_FIELDS: dict[str, Any] = {
    "model": "tiny",
    "max_model_len": 256,
    "vocab_size": 512,
    "block_size": 8,
    "num_blocks": 256,
    "num_threads": 1,
    "kernel_path": "none",
    "weight_dtype": "float32",
    "kv_dtype": "float32",
    "weight_bytes": 0,
    "kv_bytes": 0,
    "kv_bytes_per_token": 0,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "kv_reason": "chosen by the test",
}


def tiny_info(**changes: Any) -> EngineInfo:
    return EngineInfo(**{**_FIELDS, **changes})
