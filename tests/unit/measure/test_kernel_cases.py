"""Kernels beside their floors: the arithmetic of floors and shares, and every case on a model of a few kilobytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from octavo import _native
from octavo.errors import ConfigError
from octavo.measure import attention, cases, linear, probes, rows
from octavo.measure.cases import Case, compare
from octavo.measure.probes import Probe
from octavo.measure.shapes import Shapes
from support.paths import TINYSTORIES

ISA = _native.supported_paths()[0]
TINY = Shapes(
    hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=16, num_layers=2, vocab_size=96
)


@pytest.fixture(scope="module")
def pool() -> _native.ThreadPool:
    return _native.ThreadPool(2)


def test_a_floor_is_the_larger_of_bytes_and_operations() -> None:
    moment = Probe(bandwidth_gb_per_s=10.0, peak_gop_per_s=100.0, fork_join_us=1.0)
    assert moment.floor_s(20e9, 100e9) == pytest.approx(2.0)
    assert moment.floor_s(20e9, 500e9) == pytest.approx(5.0)
    assert Probe(10.0, None, 1.0).floor_s(20e9, 500e9) == pytest.approx(2.0), "operations without a peak bound nothing"


def test_shares_and_ratios_are_taken_within_a_turn(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that halves its speed in the second turn changes no share."""
    moments = (Probe(10.0 / slow, 100.0 / slow, 2.0) for slow in (1, 1, 2, 2, 1, 1))
    monkeypatch.setattr(cases, "probe", lambda *_: next(moments))

    def taking(*seconds: float) -> Callable[[Any], float]:
        found = itertools.chain([9.0], seconds)  # the first is the warm-up
        return lambda clock: next(found)

    first = Case(kernel="k", form="a", size="s", run=taking(2, 4, 2), num_bytes=10e9, num_ops=50e9,
                 arithmetic="float32", num_calls=4)  # fmt: skip
    second = Case(
        kernel="k", form="b", size="s", run=taking(1, 2, 1), num_bytes=5e9, num_ops=80e9, arithmetic="float32"
    )
    a, b = compare([first, second], pool, ISA, 3)
    assert (a["of_floor"], a["bound"], a["ratio"]) == (pytest.approx(0.5), "bytes", 1.0)
    assert (b["of_floor"], b["bound"], b["ratio"]) == (pytest.approx(0.8), "operations", 0.5)
    assert a["ms"] == 2000 and a["us_per_call"] == pytest.approx(5e5) and a["gb_per_s"] == pytest.approx(5)
    assert a["of_bandwidth"] == pytest.approx(0.5) and b["of_peak"] == pytest.approx(0.8)
    assert a["floor_ms"] == pytest.approx(1000) and a["repeats_ms"] == [2000, 4000, 2000]
    assert a["fork_join_share"] == pytest.approx(4e-6)


def test_cpu_time_has_no_shares(pool: Any) -> None:
    case = Case(kernel="k", form="a", size="s", run=lambda clock: clock() + 1.0, num_bytes=1.0)
    (row,) = compare([case], pool, ISA, 1, clock=lambda: 1.0)
    assert row["of_floor"] is None and row["of_bandwidth"] is None and row["ms"] == 2000


@pytest.mark.parametrize("arithmetic", probes.PEAKS)
def test_every_probe_finds_something(pool: Any, arithmetic: str) -> None:
    found = probes.probe(pool, ISA, arithmetic)
    assert found.bandwidth_gb_per_s > 0.01 and found.peak_gop_per_s and found.peak_gop_per_s > 0.1
    assert 0 < found.fork_join_us < 1e6


def test_an_empty_loop_wants_a_sensible_count(pool: Any) -> None:
    with pytest.raises(ValueError, match="repeats must be from 1"):
        _native.fork_join(pool, 0)


@pytest.mark.parametrize("form", linear.FORMATS)
def test_a_linear_pass_counts_its_bytes_and_operations(pool: Any, form: str) -> None:
    (group,) = linear.linear_cases(TINY, [form], [3], pool, ISA)
    (case,) = group
    weights = 2 * (128 * 32 + 32 * 64 + 96 * 32 + 32 * 48) + 96 * 32
    assert case.num_calls == 9 and case.num_ops == 3 * 2 * weights
    assert 0 < case.num_bytes <= 4 * weights * 1.5, "panels may be padded"
    assert case.arithmetic in probes.PEAKS


def test_attention_counts_keys_values_and_pairs(pool: Any) -> None:
    groups = list(attention.attention_cases(TINY, ["bfloat16", "int8"], 512, pool, ISA))
    assert [group[0].size for group in groups] == ["decode 1 x 512", "decode 16 x 512", "prefill 512 of 512"]
    for group in groups:
        assert [case.form for case in group] == ["bfloat16, blocks of 16", "int8, blocks of 16", "bfloat16, contiguous"]
    decode, prefill = groups[1], groups[2]
    bfloat16, int8, contiguous = (case.num_bytes for case in decode)
    assert bfloat16 == contiguous == 16 * 512 * 2 * 2 * (2 * 16) * 2, "layers, K and V, width, bytes"
    assert 0.5 * bfloat16 < int8 < bfloat16
    assert decode[0].num_ops == 2 * 16 * 512 * 4 * 64 and prefill[0].num_ops == 2 * (512 * 513 // 2) * 4 * 64


def test_all_cases_run(pool: Any) -> None:
    groups = [
        *linear.linear_cases(TINY, list(linear.FORMATS), [1, 5], pool, ISA),
        *attention.attention_cases(TINY, list(attention.KV_ARITHMETIC), 512, pool, ISA),
        *rows.row_cases(TINY, [1, 5, 100], pool, ISA),
    ]
    names = {case.kernel for group in groups for case in group}
    assert {"linear", "attention", "rms_norm", "rotary", "write_kv, bfloat16", "sample, greedy", "call"} <= names
    for case in itertools.chain(*groups):
        assert case.run(lambda: 0.0) == 0.0, "nothing but the clock is counted"
    sampled = [
        case for group in groups for case in group if case.kernel.startswith("sample") and case.size == "M = 100"
    ]
    assert not sampled


def test_shapes_of_a_model_and_changed_ones() -> None:
    found = Shapes.of_model(str(TINYSTORIES))
    assert (found.hidden_size, found.num_layers, found.vocab_size, found.num_kv_heads) == (64, 5, 512, 4)
    assert found.layer_linears == [(128, 64), (64, 64), (384, 64), (64, 192)] and len(found.linears) == 21
    assert Shapes().changed("num_layers=4,hidden_size=1024") == Shapes(num_layers=4, hidden_size=1024)
    for text, why in (("layers=4", "NAME=SIZE"), ("num_layers=x", "NAME=SIZE"), ("num_heads=10", "multiple")):
        with pytest.raises(ConfigError, match=why):
            Shapes().changed(text)


def test_the_default_shapes_are_those_of_the_default_model() -> None:
    defaults = Shapes()
    assert sum(n * k for n, k in defaults.linears) == 134_479_872, "parameters of SmolLM2-135M's matrices"
