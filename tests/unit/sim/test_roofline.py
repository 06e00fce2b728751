"""The cost model against the profiles and arithmetic it is made of."""

from __future__ import annotations

import random

import msgspec
import pytest

from octavo.core.kv_spec import KVGroup
from octavo.errors import ConfigError
from octavo.sim.capacity import crossing, sustained_rate
from octavo.sim.cost_model import Chunk, StepWork
from octavo.sim.devices import DEVICES
from octavo.sim.model_shape import PAPER_MODELS, Experts, LayerShape, ModelShape
from octavo.sim.reach import Reach
from octavo.sim.roofline import ARTIFACT, Host, PaddedCost, RooflineCost, interpolate

NO_HOST = Host(step_s=0.0, sequence_s=0.0)
SHAPE = PAPER_MODELS["opt-13b"].shape
A100 = DEVICES["a100-40gb"]


@pytest.mark.parametrize(
    ("name", "kv_bytes", "parameter_bytes", "num_blocks"),
    # KV bytes: 800 KiB, 2.25 MiB, 4.5 MiB; parameters and slots: Table 1 of the paper.
    [
        ("opt-13b", 819_200, 26e9, 983),
        ("opt-66b", 2_359_296, 132e9, 606),
        ("opt-175b", 4_718_592, 346e9, 3756),
        ("llama-13b", 819_200, 26e9, 980),
    ],
)
def test_the_papers_models_weigh_what_the_paper_says(
    name: str, kv_bytes: int, parameter_bytes: float, num_blocks: int
) -> None:
    model = PAPER_MODELS[name]
    assert model.shape.kv_bytes_per_token == kv_bytes
    assert model.shape.total_bytes == pytest.approx(parameter_bytes, rel=0.02)
    assert model.num_blocks(16) == num_blocks


def test_a_decode_step_reads_the_weights_at_the_profiled_share_of_the_bandwidth() -> None:
    cost = RooflineCost(SHAPE, A100, host=NO_HOST)
    one = cost.step(StepWork(num_tokens=1, num_decodes=1, num_sampled=1)).forward_s
    weights_s = (SHAPE.total_bytes) / (1.5e12 * 1.555 / 1.935)
    assert one == pytest.approx(weights_s + 40 * 27e-6, rel=1e-6)


def test_gemm_follows_the_profile_where_arithmetic_bounds() -> None:
    cost = RooflineCost(SHAPE, DEVICES["a100-80gb"], host=NO_HOST)
    assert cost.gemm_s(1024, 634e6) == pytest.approx(3.05e-3)
    assert cost.gemm_s(3072, 634e6) == pytest.approx((5.56e-3 + 10.58e-3) / 2)
    on_hopper = RooflineCost(SHAPE, DEVICES["h100"], host=NO_HOST)
    assert on_hopper.gemm_s(4096, 634e6) == pytest.approx(10.58e-3 * 312 / 989)
    assert cost.gemm_s(0, 634e6) == 0.0


def test_decodes_pay_for_the_context_they_read() -> None:
    cost = RooflineCost(SHAPE, A100, host=NO_HOST)
    near = StepWork(num_tokens=8, num_decodes=8, decode_context_tokens=8, num_sampled=8)
    far = StepWork(num_tokens=8, num_decodes=8, decode_context_tokens=8008, num_sampled=8)
    difference_s = cost.step(far).forward_s - cost.step(near).forward_s
    assert difference_s == pytest.approx(8000 * 819_200 / (0.75 * 1.555e12))
    contiguous = RooflineCost(SHAPE, A100, host=NO_HOST, kernel="contiguous")
    assert (contiguous.step(far).forward_s - contiguous.step(near).forward_s) == pytest.approx(difference_s / 1.23)
    small_blocks = RooflineCost(SHAPE, A100, host=NO_HOST, block_size=1)
    assert small_blocks.step(far).forward_s - small_blocks.step(near).forward_s == pytest.approx(4 * difference_s)
    as_large = RooflineCost(SHAPE, A100, host=NO_HOST, block_size=1, slow_small_blocks=False)
    assert as_large.step(far).forward_s - as_large.step(near).forward_s == pytest.approx(difference_s)


def test_chunks_pay_for_pairs() -> None:
    cost = RooflineCost(SHAPE, A100, host=NO_HOST)
    whole = cost.step(StepWork(num_tokens=1024, chunks=[Chunk(1024, 0)])).forward_s
    halves = cost.step(StepWork(num_tokens=1024, chunks=[Chunk(512, 0), Chunk(512, 0)])).forward_s
    # 4 operations for each of 5120 x 40 elements and pair: half of 1024 x 1024 pairs against two of 512 x 512.
    assert whole - halves == pytest.approx(4 * 5120 * 40 * (1024**2 - 2 * 512**2) / 2 / 120e12)


def test_tensor_parallelism_splits_weights_and_adds_all_reduces() -> None:
    shape = PAPER_MODELS["opt-66b"].shape
    one = RooflineCost(shape, A100, 1, host=NO_HOST)
    four = RooflineCost(shape, A100, 4, host=NO_HOST)
    work = StepWork(num_tokens=16, num_decodes=16, num_sampled=16)
    reduces_s = 2 * 64 * (50e-6 + 16 * 9216 * 2 / 130e9)
    elementwise_s = 64 * 27e-6
    quarter_s = (one.step(work).forward_s - elementwise_s) / 4
    assert four.step(work).forward_s == pytest.approx(quarter_s + elementwise_s + reduces_s)


def test_the_host_costs_per_step_per_request_and_per_sequence() -> None:
    work = StepWork(num_tokens=30, num_decodes=30, decode_context_tokens=9000, num_sampled=30)
    with_host = RooflineCost(SHAPE, A100, host=ARTIFACT).step(work).forward_s
    without = RooflineCost(SHAPE, A100, host=NO_HOST).step(work).forward_s
    assert with_host - without == pytest.approx(5e-3 + 30 * 0.25e-3)
    work.num_siblings = 20  # ten requests with three answers each
    with_host = RooflineCost(SHAPE, A100, host=ARTIFACT).step(work).forward_s
    assert with_host - without == pytest.approx(5e-3 + 10 * 0.1875e-3 + 30 * 0.0625e-3)
    assert RooflineCost(SHAPE, A100).step(StepWork()).forward_s == 0.0


def test_swapping_is_bound_by_launches_or_by_the_bus() -> None:
    small = RooflineCost(SHAPE, A100, block_size=1)
    large = RooflineCost(SHAPE, A100, block_size=256)
    # 256 tokens: 20,480 copies of 3.5 us each way, or 210 MB over the bus.
    assert small.swap_s(256) == pytest.approx(256 * 40 * 2 * 3.5e-6)
    assert large.swap_s(1) == pytest.approx(256 * 819_200 / 12.5e9)
    cost = small.step(StepWork(num_swapped_out_blocks=256, num_swapped_in_blocks=256))
    assert (cost.forward_s, cost.swap_s) == (0.0, pytest.approx(2 * small.swap_s(256)))


def test_blocks_of_some_layers_are_copied_and_swapped_as_such() -> None:
    whole, quarter = RooflineCost(SHAPE, A100), RooflineCost(SHAPE, A100, layers_per_page=10)
    assert quarter.copy_s(8) == pytest.approx(whole.copy_s(8) / 4)
    assert quarter.swap_s(8) == pytest.approx(whole.swap_s(8) / 4)


# ---- layers that differ


MIXTURE = Experts(num_experts=64, top_k=4, ffn=1500, shared_ffn=3000)


def mixed(*layers: LayerShape) -> ModelShape:
    return msgspec.structs.replace(SHAPE, layers=layers)


def step_s(shape: ModelShape, work: StepWork) -> float:
    """Without the output projection."""
    return RooflineCost(shape, A100, host=NO_HOST).step(work).forward_s


@pytest.mark.parametrize("num_tokens", [1, 5, 40])
def test_the_expected_number_of_experts_is_that_of_uniform_draws(num_tokens: int) -> None:
    rng = random.Random(num_tokens)
    drawn = [len({e for _ in range(num_tokens) for e in rng.sample(range(64), 4)}) for _ in range(2000)]
    assert MIXTURE.expected_active(num_tokens) == pytest.approx(sum(drawn) / len(drawn), rel=0.01)


def test_one_token_reads_its_experts_and_many_read_them_all() -> None:
    shape, bandwidth = mixed(LayerShape(experts=MIXTURE)), 1.5e12 * 1.555 / 1.935
    expert = 3 * 5120 * 1500 * 2
    dense = (4 * 5120 * 5120 + 5120 * (64 + 3 * 3000 + 1)) * 2
    assert shape.layer_bytes(MIXTURE) == dense + 64 * expert
    for num_tokens, active in ((1, 4), (16, 64 * (1 - (15 / 16) ** 16))):
        found_s = step_s(shape, StepWork(num_tokens=num_tokens, num_decodes=num_tokens))
        assert found_s == pytest.approx((dense + active * expert) / bandwidth + 27e-6)
    cost = RooflineCost(shape, A100, host=NO_HOST)
    many_s = cost.gemm_s(4096, dense) + cost.gemm_s(4096 * 4 / 64, 64 * expert)
    elementwise_s = 4096 * 0.205e-6 * 1.935 / 1.555
    assert step_s(shape, StepWork(num_tokens=4096, num_decodes=1)) == pytest.approx(many_s + elementwise_s)


def test_dense_layers_and_layers_of_experts_add_up() -> None:
    dense, routed = LayerShape(), LayerShape(experts=MIXTURE)
    work = StepWork(num_tokens=30, num_decodes=30, num_sampled=0)
    alone = [step_s(mixed(layer), work) for layer in (dense, routed)]
    assert step_s(mixed(routed, dense, routed), work) == pytest.approx(alone[0] + 2 * alone[1])
    weights = [mixed(layer).total_bytes - 50272 * 5120 * 2 for layer in (dense, routed)]
    total = mixed(routed, dense, routed).total_bytes - 50272 * 5120 * 2
    assert total == pytest.approx(weights[0] + 2 * weights[1])


def test_experts_are_split_over_devices() -> None:
    shape = mixed(LayerShape(experts=MIXTURE))
    work = StepWork(num_tokens=4, num_decodes=4)
    one, two = (RooflineCost(shape, A100, n, host=NO_HOST).step(work).forward_s for n in (1, 2))
    assert two == pytest.approx((one - 27e-6) / 2 + 27e-6 + 2 * (50e-6 + 4 * 5120 * 2 / 130e9))


def test_chunks_of_layers_with_windows_cost_what_is_within_them() -> None:
    reach = Reach.of([KVGroup(layers=(0,), window=100), KVGroup(layers=(1,))])
    shape = mixed(LayerShape(window=100), LayerShape())
    far, near = (
        step_s(shape, StepWork(num_tokens=64, chunks=[chunk])) for chunk in (Chunk(64, 1000), Chunk(64, 1000, reach))
    )
    pairs = 64 * (1000 + 32.5) - 64 * 100
    read = 1000 - 99
    kv_s = 2 * 5120 * 2 / (0.75 * 1.555e12)
    assert far - near == pytest.approx(4 * 5120 * pairs / 120e12 + read * kv_s)


def test_a_padded_batch_pays_for_its_longest_prompt_and_for_those_who_are_done() -> None:
    base = RooflineCost(SHAPE, A100, host=NO_HOST)
    padded = PaddedCost(base)
    first = padded.step(StepWork(num_tokens=110, chunks=[Chunk(100, 0), Chunk(10, 0)], num_sampled=2))
    assert first == base.step(StepWork(num_tokens=200, chunks=[Chunk(100, 0)] * 2, num_sampled=2))
    alone = padded.step(StepWork(num_tokens=1, num_decodes=1, decode_context_tokens=11, num_sampled=1))
    both = StepWork(num_tokens=2, num_decodes=2, decode_context_tokens=2 * 101, num_sampled=2)
    assert alone == base.step(both)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        padded.step(StepWork(num_tokens=5, chunks=[Chunk(4, 10)], num_decodes=1))


@pytest.mark.parametrize(("kernel", "num_devices", "named"), [("flash", 1, "kernel"), ("paged", 0, "num_devices")])
def test_settings_out_of_range_are_named(kernel: str, num_devices: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RooflineCost(SHAPE, A100, num_devices, kernel=kernel)


def test_interpolation() -> None:
    assert [interpolate((1, 3, 5), (10, 20, 50), x) for x in (0, 1, 2, 5, 6)] == [10, 10, 15, 50, 65]


def test_the_rate_at_which_a_curve_crosses_a_limit() -> None:
    assert crossing([(1, 0.1), (2, 0.3), (3, 0.7)]) == pytest.approx(2.5)
    assert crossing([(3, float("inf")), (2, 0.3)]) == 2
    assert crossing([(1, 0.1), (2, 0.3)]) is None
    assert crossing([(1, 0.8)]) is None


def test_the_sustained_rate_is_bracketed_and_bisected() -> None:
    runs: list[float] = []

    def latency(rate: float) -> float:
        runs.append(rate)
        return 0.05 + rate / 10

    for guess in (0.1, 4.0, 60.0):
        assert sustained_rate(latency, guess) == pytest.approx(4.5, rel=0.02)
    assert len(runs) < 45
    assert sustained_rate(lambda rate: 1.0, 1.0) == 0.0
    with pytest.raises(ConfigError, match="first_guess"):
        sustained_rate(latency, 0.0)
