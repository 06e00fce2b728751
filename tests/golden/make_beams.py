"""Make the expectations of beam search with transformers' `generate(num_beams=...)`, in float32.

    python tests/golden/make_beams.py [NAME ...]

For every case and prompt: all answers with their scores, best first, and how clear the search's choices were.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from golden import cases, make_goldens
from golden.make_goldens import Expectation


class _Margin:
    """Watches a model's beam search: the smallest gap between what was chosen and what just was not,
    as a difference between sums of logprobs."""

    def __init__(self, model: Any) -> None:
        self.smallest = float("inf")
        self._choose = model._get_running_beams_for_next_iteration
        self._check = model._check_early_stop_heuristic
        model._get_running_beams_for_next_iteration = self.choose
        model._check_early_stop_heuristic = self.check

    def note(self, gaps: Any) -> None:
        self.smallest = min(self.smallest, *gaps.abs().flatten().tolist())

    def choose(self, **given: Any) -> Any:
        sums, ends, width = (
            given["topk_log_probs"][0],
            given["next_token_hits_stopping_criteria"][0],
            given["num_beams"],
        )
        if ends[: width + 1].any():
            self.note(sums[width - 1] - sums[width])
        going = sums[~ends]
        if len(going) > width:
            self.note(going[width - 1] - going[width])
        return self._choose(**given)

    def check(self, **given: Any) -> Any:
        if given["is_sent_finished"].all():
            length = (given["cur_len"] - given["decoder_prompt_len"]) ** given["length_penalty"]
            self.note(given["running_beam_scores"][0, 0] - given["beam_scores"].min() * length)
        return self._check(**given)


def make(name: str, *, chosen: Sequence[int] = range(len(cases.BEAMS)), gguf: Path | None = None) -> Expectation:
    """The expectation of model `name`.

    Returns:
        `tokens` int32 [chosen, prompts, cases.BEAM_WIDTH, cases.BEAM_TOKENS], filled up with `cases.NO_TOKEN`;
        `scores` float32 [chosen, prompts, cases.BEAM_WIDTH], filled up with NaN; `margins` float32 [chosen, prompts].
    """
    model = _model(name, gguf)
    margin = _Margin(model)
    prompts = cases.beam_prompts(name)
    shape = (len(chosen), len(prompts), cases.BEAM_WIDTH)
    tokens = np.full((*shape, cases.BEAM_TOKENS), cases.NO_TOKEN, np.int32)
    scores = np.full(shape, np.nan, np.float32)
    margins = np.zeros(shape[:2], np.float32)
    for i, p in np.ndindex(shape[:2]):
        case = cases.BEAMS[chosen[i]]
        margin.smallest = float("inf")
        with _threads(torch.get_num_threads() if name == "smollm2" else 1):
            found, found_scores = _search(model, prompts[p], case, cases.beam_ends(name)[: case.num_ends])
        lengths = (found != cases.NO_TOKEN).sum(dim=1)
        margin.note((found_scores[:-1] - found_scores[1:]) * lengths[1:] ** case.length_penalty)
        tokens[i, p, : case.width, : found.shape[1]] = found.numpy()
        scores[i, p, : case.width] = found_scores.numpy()
        margins[i, p] = margin.smallest
    return {"tokens": tokens, "scores": scores, "margins": margins}


def _model(name: str, gguf: Path | None) -> Any:
    if name in cases.TINY:
        return make_goldens.tiny_model(cases.TINY[name])
    if name == "tinystories":
        return make_goldens.stories_model()
    assert gguf is not None
    return make_goldens.real_model(gguf)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Small models lose more by waking threads, on a busy machine most of their time, than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def _search(model: Any, prompt: list[int], case: cases.BeamCase, ends: tuple[int, ...]) -> tuple[Any, Any]:
    """Answers [width, longest], filled up with `cases.NO_TOKEN`, and their scores [width]."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        num_beams=case.width,
        num_return_sequences=case.width,
        max_new_tokens=cases.BEAM_TOKENS,
        min_new_tokens=case.min_tokens or None,
        length_penalty=case.length_penalty,
        early_stopping=case.early_stopping,
        repetition_penalty=case.repetition_penalty,
        eos_token_id=list(ends),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    tokens = output.sequences[:, len(prompt) :]
    return tokens.masked_fill(output.beam_indices < 0, cases.NO_TOKEN), output.sequences_scores


def main() -> None:
    for name in sys.argv[1:] or [*cases.TINY, "tinystories", "smollm2"]:
        gguf = make_goldens.default_model() if name == "smollm2" else None
        np.savez_compressed(cases.EXPECTED / f"beams-{name}.npz", **make(name, gguf=gguf))
        print(name, flush=True)


if __name__ == "__main__":
    main()
