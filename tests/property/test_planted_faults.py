"""Would the random histories notice? Each fault of `faults` must break one of them, and say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from property.driver import drive
from property.faults import FAULTS, short_keys

BROKEN_SWITCH = (AttributeError, TypeError, NameError)
"""What a switch raises that no longer fits the code it patches: nothing was caught then."""


SOONEST: dict[str, dict[str, Any]] = {
    "beams_part": {"budget": 3, "capacity": 40, "max_num_seqs": 6},
    "computed_before_it_arrived": {"preemption": "swap"},
    "contents_shifted_after_a_swap": {"preemption": "swap", "caching": True},
    "failed_get_ignored": {"preemption": "swap", "host_blocks": 40},
    "takeover_lost": {"depth": 2, "budget": 24, "caching": True},
}
"""Shapes in which faults show that are rare otherwise."""


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 60


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises(Exception) as caught:
        drive(200_000, **SOONEST.get(name, {}))
    assert not isinstance(caught.value, BROKEN_SWITCH), f"the switch is broken: {caught.value!r}"
    assert caught.value.args and caught.value.args[0], "a failure must say what is wrong"


def test_keys_of_eight_bits_lead_to_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is never trusted: tokens are compared, so contents that share one are told apart."""
    short_keys(monkeypatch)
    report = drive(20_000)
    assert report.events["num_prefix_hit_tokens"] > 500, "nothing was hit, so nothing was mixed up"
