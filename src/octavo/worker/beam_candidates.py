"""What a beam may go on with: its likeliest next tokens, for the core to choose from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.protocol import Array, SampleBatch
from octavo.backends.reference import adjusted
from octavo.messages import TokenLogprobs
from octavo.worker.sampler import top_ids


def beam_candidates(logits: Array, batch: SampleBatch, counts: Sequence[int]) -> list[TokenLogprobs | None]:
    """The `counts[i]` likeliest tokens of each row of `logits`, best first, lower ids first among equals.

    Scores are transformers' (`_beam_search`): log-softmax of the raw logits in float32, then penalties, bias and bans
    on these log-probabilities, and no normalising again. Row by row, so a beam's scores do not depend on its
    neighbours. Fewer candidates where fewer tokens are allowed; None where the logits hold a NaN or none is allowed.
    """
    return [_candidates(row, batch, i, counts[i]) for i, row in enumerate(logits)]


def _candidates(row: Array, batch: SampleBatch, i: int, count: int) -> TokenLogprobs | None:
    peak = row.max()
    if not np.isfinite(peak):
        return None
    shifted = row - peak
    log_probs = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    scores = adjusted(log_probs, batch, i)
    best = top_ids(scores, min(count, len(scores)))
    top = [(token, score) for token, score in zip(best, scores[best].tolist(), strict=True) if np.isfinite(score)]
    if not top:
        return None
    token, score = top[0]
    return TokenLogprobs(token, score, 1, top)
