from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.core.step import RowSetup, StepPlan
from octavo.errors import ConfigError, ModelFileError
from octavo.executor import local
from octavo.executor.local import LocalExecutor
from octavo.executor.sizing import length_limit
from octavo.messages import SamplingParams
from octavo.models.families import decoder_spec
from octavo.weights.sources import resolve
from support.paths import TINYSTORIES
from support.tiny_models import TinyLlama, write_tiny_llama


def load(folder: Path = TINYSTORIES, **settings: Any) -> LocalExecutor:
    return LocalExecutor.load(EngineConfig.of(model=str(folder), **settings), resolve(str(folder)))


def plan(step_id: int = 1) -> StepPlan:
    setup = RowSetup(0, [1, 2, 3], 3, 0, SamplingParams(temperature=0.0), seed=0, sequence_index=0)
    return StepPlan(step_id, [0], [3], [0], [setup], [(0, 0, 0, 1)], [])


def test_says_what_it_settled_on() -> None:
    executor = load(dtype="float32", block_size=8, num_blocks=40, max_num_seqs=3, num_threads=2)
    info = executor.info
    executor.close()
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (512, 256, (2,))
    assert (info.block_size, info.num_blocks, info.max_num_seqs, info.num_threads) == (8, 40, 3, 2)
    assert (info.weight_dtype, info.kv_dtype) == ("float32", "float32")
    per_token = 2 * 5 * 4 * 8 * 4  # keys and values, layers, heads, head_dim, bytes
    assert (info.kv_bytes_per_token, info.kv_bytes) == (per_token, 40 * 8 * per_token)
    assert executor.num_blocks == 40
    assert executor.kv_spec.groups[0].layers == (0, 1, 2, 3, 4)
    assert len(info.extras["fingerprint"]) >= 32


def test_int8_kv_takes_a_byte_per_value_and_a_scale_per_vector() -> None:
    executor = load(dtype="float32", kv_cache_dtype="int8", block_size=8, num_blocks=40)
    executor.close()
    info = executor.info
    per_token = 2 * 5 * 4 * (8 + 4)  # keys and values, layers, heads, bytes of a vector
    assert (info.kv_dtype, info.kv_bytes_per_token, info.kv_bytes) == ("int8", per_token, 40 * 8 * per_token)
    assert info.extras["kv_fingerprint"]["kv_dtype"] == "int8"


def test_says_what_decides_the_bits_of_a_block() -> None:
    executor = load(dtype="float32", kv_cache_dtype="bfloat16", block_size=8, num_blocks=40, isa="portable")
    executor.close()
    assert executor.info.extras["kv_fingerprint"] == {
        "weights": executor.info.extras["fingerprint"],
        "kv_dtype": "bfloat16",
        "block_size": 8,
        "layout_version": 2,
        "kernel_path": "cpu/portable/float32",
    }


def test_quantised_weights_are_named_and_have_caches_of_their_own() -> None:
    found = {}
    for quantization in ("none", "int8", "int4"):
        executor = load(dtype="float32", quantization=quantization, backend="reference", block_size=8, num_blocks=40)
        executor.close()
        found[quantization] = executor.info
    assert found["none"].weight_dtype == "float32"
    assert found["int8"].weight_dtype == "int8 (groups of 32) expanded to float32"
    assert found["int4"].weight_dtype == ", ".join(f"int{n} (groups of 32) expanded to float32" for n in (4, 8))
    assert len({tuple(info.extras["kv_fingerprint"].items()) for info in found.values()}) == 3


def test_a_quarter_of_the_kv_memory_is_the_host_tiers() -> None:
    executor = load(dtype="float32", block_size=8, num_blocks=40)
    executor.close()
    info = executor.info
    assert info.bytes_per_block == 8 * info.kv_bytes_per_token
    assert executor.num_host_blocks == info.num_host_blocks == 10
    assert info.host_reason.endswith("10 blocks: a quarter of the KV memory")


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_go_to_the_host_and_come_back(depth: int) -> None:
    executor = load(dtype="float32", block_size=8, num_blocks=40, depth=depth, swap_space_bytes=1 << 20)
    executor.submit(plan()).result()
    kv = executor._runner._kv
    was = kv.export_block(1)
    assert any(was)
    out = executor.submit(StepPlan(2, [], [], [], [], [], [], swap_out=[(1, 100)], erases=[1])).result()
    assert not any(kv.export_block(1))
    back = executor.submit(StepPlan(3, [], [], [], [], [], [], swap_in=[(100, 7), (99, 8)])).result()
    assert kv.export_block(7) == was
    assert (out.failed_swap_out, back.failed_swap_in) == ([], [8])
    assert min(out.swap_s, back.swap_s) > 0
    executor.close()


@pytest.mark.parametrize("erase", [False, True])
def test_discarded_slots_are_erased_where_freed_blocks_are(erase: bool) -> None:
    executor = load(dtype="float32", block_size=8, num_blocks=40, erase_freed_blocks=erase)
    executor.submit(plan()).result()
    executor.submit(StepPlan(2, [], [], [], [], [], [], swap_out=[(1, 3)])).result()
    slot = executor._runner._swapper._tier._slots[3]  # type: ignore[attr-defined]
    assert slot.tobytes() == executor._runner._kv.export_block(1)
    executor.submit(StepPlan(3, [], [], [], [], [], [], discards=[3])).result()
    assert (not slot.any()) is erase
    executor.close()


def test_a_host_tier_without_address_space_is_a_setting_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(local, "HostTier", refuse)
    with pytest.raises(ConfigError, match=r"swap_space_bytes = 4096: must be less: the system gives no address space"):
        load(num_blocks=40, block_size=1, swap_space_bytes=4096)


def test_the_block_size_is_chosen_from_model_and_workload(tmp_path: Path) -> None:
    """64 bytes of key and value per head, at most 256 tokens of context."""
    found = {}
    for tokens in (20, 512):
        executor = load(dtype="float32", num_blocks=40, expected_tokens=tokens, isa="portable")
        executor.close()
        found[tokens] = executor.info
    assert found[20].block_size == 16
    assert found[512].block_size == 64
    assert found[512].block_size_reason.startswith("64 tokens: with 256 tokens per sequence of 64 bytes per layer and")
    executor = load(write_tiny_llama(tmp_path, TinyLlama(window=24)), num_blocks=40)
    executor.close()
    assert "with 24 tokens per sequence" in executor.info.block_size_reason


def test_a_block_size_as_asked_is_not_argued_with() -> None:
    executor = load(num_blocks=40, block_size=4)
    executor.close()
    assert (executor.info.block_size, executor.info.block_size_reason) == (4, "4 tokens as asked")
    assert executor.kv_spec.block_size == 4


def test_the_pool_is_never_larger_than_the_rows_can_use() -> None:
    executor = load(block_size=16, max_num_seqs=2)
    executor.close()
    assert executor.num_blocks == 1 + 2 * (256 // 16 + 1)
    assert "max_num_seqs x max_model_len" in executor.info.kv_reason


def test_kv_may_have_another_dtype_than_the_weights() -> None:
    executor = load(dtype="float32", kv_cache_dtype="bfloat16", num_blocks=8)
    executor.close()
    assert (executor.info.weight_dtype, executor.info.kv_dtype) == ("float32", "bfloat16")
    assert executor.info.kv_bytes_per_token == 2 * 5 * 4 * 8 * 2


def test_a_window_makes_a_group(tmp_path: Path) -> None:
    executor = load(write_tiny_llama(tmp_path, TinyLlama(window=24)), num_blocks=8)
    executor.close()
    assert [(group.layers, group.window) for group in executor.kv_spec.groups] == [((0, 1), 24)]


def test_a_small_pool_shortens_the_context() -> None:
    executor = load(num_blocks=5, block_size=8)
    executor.close()
    assert executor.info.max_model_len == 32


@pytest.mark.parametrize(
    ("settings", "field", "said"),
    [
        ({"max_model_len": 257}, "max_model_len", "256"),
        ({"max_model_len": 64, "num_blocks": 5, "block_size": 8}, "max_model_len", "32"),
        ({"num_blocks": 1 << 30}, "num_blocks", "GiB"),
        ({"kv_cache_memory_bytes": 1000}, "kv_cache_memory_bytes", "2 KV blocks"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(settings: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load(**settings)
    assert error.value.field == field


def test_more_than_the_trained_context_is_served_if_asked_for() -> None:
    with pytest.raises(ConfigError, match="trained context of 256 tokens; --allow-long-max-model-len lifts that"):
        load(max_model_len=1024, num_blocks=200, block_size=8)
    executor = load(max_model_len=1024, num_blocks=200, block_size=8, allow_long_max_model_len=True)
    try:
        assert executor.info.max_model_len == 1024
        growth = [(0, 0, column, 1 + column) for column in range(126)]
        tokens = [3 + i % 50 for i in range(1001)]
        setup = RowSetup(0, tokens, 1001, 1000, SamplingParams(temperature=0), 0, 0)
        late = executor.submit(StepPlan(1, [0], [1], [0], [setup], growth, [])).result()
        assert len(late.token_ids) == 1 and late.token_ids[0] >= 0
    finally:
        executor.close()


def test_learned_positions_have_an_end() -> None:
    config = EngineConfig.of(max_model_len=300, allow_long_max_model_len=True)
    spec = msgspec.structs.replace(decoder_spec(TinyLlama().config()), position_offset=2)
    with pytest.raises(ConfigError, match="256 tokens: there are no embeddings of later positions"):
        length_limit(config, spec)


def test_a_failed_load_leaves_no_threads(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, TinyLlama())
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1])
    before = len(list(Path("/proc/self/task").iterdir()))
    with pytest.raises(ModelFileError):
        load(tmp_path, num_threads=3)
    assert len(list(Path("/proc/self/task").iterdir())) == before


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_both_depths_give_the_same_tokens(backend: str, depth: int) -> None:
    executor = load(backend=backend, dtype="float32", num_blocks=8, depth=depth)
    handles = [executor.submit(plan()), executor.submit(StepPlan(2, [0], [1], [0], [], [], []))]
    results = [handle.result() for handle in handles]
    executor.close()
    assert [result.step_id for result in results] == [1, 2]
    assert [result.token_ids for result in results] == [[412], [421]]  # as transformers has it


@pytest.mark.parametrize("depth", [1, 2])
def test_a_plan_runs_on_a_thread_of_its_own_only_when_plans_overlap(depth: int) -> None:
    executor = load(num_blocks=8, depth=depth)
    ran_on: list[int] = []
    execute = executor._runner.execute

    def noted(plan: StepPlan) -> Any:
        ran_on.append(threading.get_ident())
        return execute(plan)

    executor._runner.execute = noted  # type: ignore[method-assign]
    executor.submit(plan()).result()
    executor.close()
    assert (ran_on == [threading.get_ident()]) is (depth == 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_as_a_whole_raises_from_its_handle(depth: int) -> None:
    executor = load(num_blocks=8, depth=depth)
    bad = plan()
    bad.table_growth = [(0, 0, 0, 99)]
    handle = executor.submit(bad)  # not here: the caller waits for the result elsewhere
    with pytest.raises(ValueError, match="block"):
        handle.result()
    executor.close()
