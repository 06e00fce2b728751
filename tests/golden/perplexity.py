"""The perplexity of a text by Hugging Face transformers, in float32: the oracle of `octavo bench quality`."""

from __future__ import annotations

from typing import Any


def nats_of_each(model: Any, token_ids: list[int], length: int, stride: int) -> list[float]:
    """Negative logprob of each token after the first, the window sliding by `stride`."""
    import torch

    found: list[float] = []
    start = 0
    while len(found) < len(token_ids) - 1:
        window = token_ids[start : start + length]
        with torch.inference_mode():
            logprobs = model(torch.tensor([window])).logits[0].double().log_softmax(-1)
        all_of_it = [-float(logprobs[i, token]) for i, token in enumerate(window[1:])]
        found += all_of_it[len(found) - start :]  # entry i of `found` is token i + 1 of the text
        start += stride
    return found
