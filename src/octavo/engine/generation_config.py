"""generation_config.json: how the makers of a model would have it sampled.

Of its fields those are read that SamplingParams has. `do_sample` is not: whoever wants greedy answers says so by the
temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import RequestError
from octavo.messages import SamplingParams
from octavo.weights.huggingface import GENERATION_CONFIG, read_generation_config

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
LIMIT_FIELD = "max_new_tokens"
MAX_LIMIT = (1 << 31) - 1

__all__ = ["GENERATION_CONFIG", "LIMIT_FIELD", "SAMPLING_FIELDS", "read_generation_config", "sampling_values"]


def sampling_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams that it sets. What is null is not set.

    Raises:
        RequestError: Naming a field that cannot be.
    """
    values = {name: value for name in SAMPLING_FIELDS if (value := config.get(name)) is not None}
    limit = config.get(LIMIT_FIELD)
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
            raise RequestError(LIMIT_FIELD, limit, f"an integer from 1 to {MAX_LIMIT}")
        values["max_tokens"] = limit
    SamplingParams(**values)  # checks them
    return values
