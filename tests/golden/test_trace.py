"""A step is one native call or two, forward and sample, and no Python runs between the layers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from octavo.backends import cpu
from octavo.config import EngineConfig
from octavo.core.step import RowSetup, StepPlan
from octavo.executor.local import LocalExecutor
from octavo.messages import SamplingParams
from octavo.weights.sources import resolve
from support.tiny_models import TinyLlama, write_tiny_llama


class Calls:
    """Counts Python functions entered while it is on."""

    def __init__(self) -> None:
        self.num_python = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        self.num_python += event == "call"


class Noted:
    """Stands before a native object or module and notes each call of it."""

    def __init__(self, behind: Any, notes: list[str]) -> None:
        self._behind = behind
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._behind, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._notes.append(name)
            return attribute(*arguments, **named)

        return call if callable(attribute) else attribute


def decode_calls(
    folder: Path, num_layers: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    """One decode step of a model with so many layers: Python functions entered, and native calls by name."""
    write_tiny_llama(folder, TinyLlama(num_layers=num_layers))
    executor = LocalExecutor.load(
        EngineConfig.of(model=str(folder), num_blocks=8, max_num_seqs=2), resolve(str(folder))
    )
    setup = RowSetup(0, [1, 2, 3], 3, 0, SamplingParams(temperature=temperature), 1, 0)
    executor.submit(StepPlan(1, [0], [3], [0], [setup], [(0, 0, 0, 1)], [])).result()
    plan = StepPlan(2, [0], [1], [0], [], [], [])
    notes: list[str] = []
    with monkeypatch.context() as patch, Calls() as calls:
        program = executor._runner._program
        patch.setattr(program, "_native", Noted(program._native, notes))
        patch.setattr(cpu, "_native", Noted(cpu._native, notes))
        executor.submit(plan).result()
    executor.close()
    return calls.num_python, notes


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, ["run", "sample"]), (0.0, ["run_greedy"])])
def test_native_calls_of_a_step_whatever_the_depth_of_the_model(
    temperature: float, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow, deep = (decode_calls(tmp_path / str(n), n, temperature, monkeypatch) for n in (2, 12))
    assert deep[1] == expected
    assert shallow == deep
