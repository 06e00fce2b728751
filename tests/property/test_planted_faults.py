"""Would the random histories notice? Each fault of `faults` must break one of them, and say what is wrong."""

from __future__ import annotations

import pytest

from property.driver import drive
from property.faults import FAULTS, short_keys

BROKEN_SWITCH = (AttributeError, TypeError, NameError)
"""What a switch raises that no longer fits the code it patches: nothing was caught then."""


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 60


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises(Exception) as caught:
        drive(200_000)
    assert not isinstance(caught.value, BROKEN_SWITCH), f"the switch is broken: {caught.value!r}"
    assert caught.value.args and caught.value.args[0], "a failure must say what is wrong"


def test_keys_of_eight_bits_lead_to_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is never trusted: tokens are compared, so contents that share one are told apart."""
    short_keys(monkeypatch)
    report = drive(20_000)
    assert report.events["num_prefix_hit_tokens"] > 500, "nothing was hit, so nothing was mixed up"
