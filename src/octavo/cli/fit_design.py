"""Which steps `octavo bench fit` measures.

Each stage sends some requests at once to an engine of its own, and nothing in it depends on time or chance: whenever it
runs, its steps are the same. So a stage is run in several rounds, in turns with all others, and each step's time is the
median over the rounds. Prompts longer than the budget are computed in chunks with ever more before them, the first
sequences decode beside the prompts of the last, and at the end all decode: one stage gives steps of every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from octavo.errors import ConfigError
from octavo.sim.request import TimedRequest


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of about one size for an engine with a token budget of its own."""

    budget: int
    """Tokens computed in one step, at most."""
    num_requests: int
    prompt_tokens: int
    """Of the longest prompt; the shortest has three quarters of them."""
    output_tokens: int = 16


STAGES = (
    # Decodes of 1 to 64 sequences at short and long contexts; on the way there, chunks and mixed steps.
    Stage(budget=128, num_requests=1, prompt_tokens=24),
    Stage(budget=128, num_requests=1, prompt_tokens=960),
    Stage(budget=128, num_requests=2, prompt_tokens=300),
    Stage(budget=128, num_requests=4, prompt_tokens=150),
    Stage(budget=128, num_requests=4, prompt_tokens=700),
    Stage(budget=128, num_requests=8, prompt_tokens=60),
    Stage(budget=128, num_requests=8, prompt_tokens=300),
    Stage(budget=128, num_requests=16, prompt_tokens=160),
    Stage(budget=128, num_requests=24, prompt_tokens=100),
    Stage(budget=128, num_requests=32, prompt_tokens=60),
    Stage(budget=128, num_requests=64, prompt_tokens=40),
    # Chunks of other sizes.
    Stage(budget=8, num_requests=2, prompt_tokens=64, output_tokens=8),
    Stage(budget=16, num_requests=2, prompt_tokens=160, output_tokens=8),
    Stage(budget=32, num_requests=4, prompt_tokens=160, output_tokens=8),
    Stage(budget=64, num_requests=4, prompt_tokens=300, output_tokens=8),
    Stage(budget=256, num_requests=6, prompt_tokens=400, output_tokens=8),
    Stage(budget=512, num_requests=5, prompt_tokens=800, output_tokens=8),
)

QUICK_STAGES = (
    # Some 4,000 tokens of prompts: a few seconds.
    Stage(budget=128, num_requests=1, prompt_tokens=500, output_tokens=8),
    Stage(budget=128, num_requests=4, prompt_tokens=60, output_tokens=8),
    Stage(budget=128, num_requests=16, prompt_tokens=64, output_tokens=8),
    Stage(budget=128, num_requests=32, prompt_tokens=32, output_tokens=6),
    Stage(budget=32, num_requests=2, prompt_tokens=96, output_tokens=4),
    Stage(budget=512, num_requests=2, prompt_tokens=640, output_tokens=4),
)

MOST_TOKENS = max(stage.budget for stage in STAGES)
"""In one step: what the engine has to be built for."""


_LEAST_PROMPT = 64
"""Tokens: with shorter ones alone, chunks and context would hardly vary."""


def fitting_stages(
    max_num_seqs: int, max_model_len: int, num_slots: int, stages: Sequence[Stage] = STAGES
) -> list[Stage]:
    """The stages cut to an engine's size.

    Args:
        num_slots: Tokens that its KV memory holds.

    Raises:
        ConfigError: For an engine so small that too little is left to measure.
    """
    found = []
    for stage in stages:
        num_requests = min(stage.num_requests, max_num_seqs)
        output = min(stage.output_tokens, max_model_len // 4)
        prompt = min(stage.prompt_tokens, max_model_len - output, num_slots // num_requests - output - 64)
        if output >= 2 and prompt >= 4:
            changes = {"num_requests": num_requests, "prompt_tokens": prompt, "output_tokens": output}
            found.append(msgspec.structs.replace(stage, **changes))
    found = list(dict.fromkeys(found))
    if max((stage.prompt_tokens for stage in found), default=0) < _LEAST_PROMPT:
        raise ConfigError("max_model_len", max_model_len, "larger, or the KV memory: too few shapes of steps fit")
    return found


def requests(stage: Stage, vocab_size: int, rng: Random) -> list[TimedRequest]:
    """The stage's requests, with prompts of words drawn by `rng` that share no beginning."""
    count = stage.num_requests
    return [
        TimedRequest(
            arrival_s=0.0,
            token_ids=[rng.randrange(vocab_size) for _ in range(_prompt_tokens(stage, i))],
            num_output_tokens=stage.output_tokens,
        )
        for i in range(count)
    ]


def _prompt_tokens(stage: Stage, number: int) -> int:
    return max(1, stage.prompt_tokens - number * stage.prompt_tokens // (4 * stage.num_requests))
