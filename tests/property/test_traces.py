"""Histories that once broke the core, as the driver shrank them."""

from __future__ import annotations

from typing import Any

import pytest

from property.world import History, play

_ADD: dict[str, Any] = {
    "tenant": "red",
    "salt": None,
    "adapter": None,
    "stops": (1,),
    "ignore_eos": False,
    "min_tokens": 0,
    "logprobs": None,
}

TRACES: dict[str, History] = {
    "the last beam was swapped out and the others waited for it": (
        {
            "depth": 2,
            "block_size": 1,
            "window": 14,
            "budget": 2,
            "max_num_seqs": 5,
            "capacity": 37,
            "host_blocks": 40,
            "preemption": "swap",
            "num_groups": 1,
        },
        [
            (
                "add",
                _ADD
                | {"family": 1, "num_prompt": 3, "leave": 1, "stops": (1, 0), "ignore_eos": True, "min_tokens": 1}
                | {"max_tokens": 16, "n": 1, "prompt_logprobs": None},
            ),
            ("step", {"count": 2, "late": True}),
            (
                "add_crowd",
                {"family": 1, "num_prompt": 27, "leave": 20, "tenant": "red", "count": 3, "dies": 2, "after": None},
            ),
            (
                "add_beams",
                _ADD
                | {"family": 1, "num_prompt": 1, "leave": 14, "salt": "pepper", "min_tokens": 1, "logprobs": 0}
                | {"max_tokens": 2, "width": 4, "length_penalty": 2.0, "early_stopping": False},
            ),
        ],
    ),
    "a match without its tail needed one more column in the windowed group": (
        {
            "block_size": 8,
            "window": 2,
            "budget": 18,
            "max_num_seqs": 5,
            "capacity": 51,
            "host_blocks": 40,
            "erases": True,
        },
        [
            (
                "add",
                _ADD
                | {"family": 1, "num_prompt": 11, "leave": 4, "tenant": "blue", "salt": "pepper", "adapter": "lora"}
                | {"stops": (1, 0), "ignore_eos": True, "min_tokens": 4, "logprobs": 0}
                | {"max_tokens": 2, "n": 3, "prompt_logprobs": None},
            ),
            (
                "add",
                _ADD
                | {"family": 1, "num_prompt": 27, "leave": 6, "tenant": "blue", "stops": (1, 0), "ignore_eos": True}
                | {"min_tokens": 2, "max_tokens": 17, "n": 1, "prompt_logprobs": None},
            ),
        ],
    ),
    "a search was refused in the plan that named its rows": (
        {
            "depth": 2,
            "block_size": 4,
            "window": 16,
            "budget": 18,
            "max_num_seqs": 1,
            "capacity": 38,
            "host_blocks": 8,
            "eviction": "cost",
            "erases": True,
        },
        [
            ("publish", {"family": 0, "num_prompt": 18, "leave": 18}),
            (
                "add_beams",
                _ADD
                | {"family": 0, "num_prompt": 12, "leave": 5, "adapter": "lora", "min_tokens": 2}
                | {"max_tokens": 15, "width": 1, "length_penalty": 2.0, "early_stopping": "never"},
            ),
        ],
    ),
    "a refused search answered for its beams, not for its answers": (
        {
            "depth": 2,
            "block_size": 1,
            "window": 16,
            "budget": 24,
            "max_num_seqs": 6,
            "capacity": 51,
            "host_blocks": 3,
            "eviction": "cost",
            "preemption": "recompute",
            "erases": True,
        },
        [
            ("publish", {"family": 1, "num_prompt": 25, "leave": 18}),
            (
                "add_beams",
                _ADD
                | {"family": 1, "num_prompt": 29, "leave": 7, "tenant": "blue", "min_tokens": 4, "logprobs": 0}
                | {"max_tokens": 3, "width": 4, "length_penalty": 0.0, "early_stopping": False},
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_it_does_so_no_more(name: str) -> None:
    play(TRACES[name])
