"""Why nothing could be sampled for a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.protocol import Array
from octavo.core.step import StepResult
from octavo.worker.batch_state import BatchState
from octavo.worker.grammar_rows import GrammarRows

NOT_FINITE = "the model's scores for this sequence are not finite numbers"

NOTHING_LEFT = (
    "no token is left to choose from: grammar, allowed_token_ids, bad_words, logit_bias and min_tokens exclude them all"
)


def explain_failures(
    result: StepResult, rows: Sequence[int], grammars: GrammarRows, state: BatchState, logits: Array | None
) -> None:
    """Put the reasons of rows whose token is -1 into a result.

    Args:
        rows: Parallel to the result's tokens.
        logits: Of these rows; None if they are not at hand, and then they are taken for finite.
    """
    result.row_errors = []
    for i, (row, token) in enumerate(zip(rows, result.token_ids, strict=True)):
        if token >= 0:
            continue
        why = grammars.failure(row)
        if why is None and (row in grammars or row in state.allowed or row in state.bad_token_ids):
            why = NOTHING_LEFT if logits is None or np.isfinite(logits[i].max()) else None
        if why is not None:
            result.refused_rows.append(row)
        result.row_errors.append((row, why or NOT_FINITE))
