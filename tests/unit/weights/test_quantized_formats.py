"""Quantised safetensors: every format against numbers packed bit by bit, and what is refused in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limits import refused
from test_dequantize import rounded_to_bf16

from octavo.backends.bfloat16 import to_float32
from octavo.backends.grouped import expand
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.huggingface import HFCheckpoint
from octavo.weights.quantized.methods import METHODS
from support import quantized
from support.quantized import CASES, Stored, Tensors

MODULE = "model.layers.0.mlp.down_proj"
WEIGHT = f"{MODULE}.weight"
NORM = "model.norm.weight"
ROWS, COLUMNS = 40, 256


def folder(path: Path, config: dict[str, Any] | None, tensors: Tensors) -> Path:
    """A Hugging Face folder with these tensors of one module, and a norm beside them."""
    path.mkdir(parents=True, exist_ok=True)
    sections = {} if config is None else {"quantization_config": config}
    (path / "config.json").write_text(json.dumps({"num_hidden_layers": 1} | sections))
    named = {f"{MODULE}.{ending}" if "." not in ending else ending: tensor for ending, tensor in tensors.items()}
    quantized.save(path / "model.safetensors", named | {NORM: ("F32", np.ones(4, np.float32))})
    return path


def stored(name: str, rows: int = ROWS, columns: int = COLUMNS) -> Stored:
    return CASES[name].write(np.random.default_rng(list(name.encode())), rows, columns)


def opened(path: Path, name: str, **changes: Any) -> HFCheckpoint:
    """A checkpoint of one format; `changes` replaces tensors by their endings, or drops those that are None."""
    tensors = stored(name).tensors | changes
    held = {ending: tensor for ending, tensor in tensors.items() if tensor is not None}
    return HFCheckpoint(folder(path, CASES[name].config, held))


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_that_were_packed(tmp_path: Path, name: str) -> None:
    checkpoint = opened(tmp_path, name)
    wanted = stored(name).values
    assert set(checkpoint.names()) == {WEIGHT, NORM}
    assert checkpoint.info(WEIGHT).shape == (ROWS, COLUMNS)
    assert checkpoint.info(WEIGHT).dtype == CASES[name].kind
    np.testing.assert_array_equal(checkpoint.read(WEIGHT, "float32"), wanted)
    narrow = to_float32(checkpoint.read(WEIGHT, "bfloat16"))  # as numbers: the sign of a zero is not kept
    np.testing.assert_array_equal(narrow, to_float32(rounded_to_bf16(wanted)))
    whole = np.zeros((2 * ROWS, COLUMNS), np.float32)
    given = whole[ROWS:]
    assert checkpoint.read(WEIGHT, "float32", out=given) is given
    np.testing.assert_array_equal(whole[ROWS:], wanted)
    assert not whole[:ROWS].any()
    np.testing.assert_array_equal(checkpoint.read(NORM, "float32"), np.ones(4))


@pytest.mark.parametrize("name", CASES)
def test_groups_stand_for_the_same_values(tmp_path: Path, name: str) -> None:
    checkpoint = opened(tmp_path, name)
    grouped, kept = checkpoint.read_grouped(WEIGHT), CASES[name].kept
    hollow = checkpoint.hollow_grouped(WEIGHT)
    if kept is None:
        assert grouped is hollow is None
        return
    assert grouped is not None and hollow is not None
    np.testing.assert_array_equal(expand(grouped), stored(name).values)
    for found in (grouped, hollow):
        assert (found.bits, found.group, found.zero, found.minimums is not None, found.half_scales) == kept
        assert found.codes.shape == (ROWS, COLUMNS)
        groups = -(-COLUMNS // found.group)
        assert found.scales.shape == (ROWS, groups)
        assert found.minimums is None or found.minimums.shape == (ROWS, groups)
    assert grouped.codes.max() < 1 << grouped.bits
    assert all(values.flags.c_contiguous for values in (grouped.codes, grouped.scales))
    if grouped.half_scales:
        assert np.array_equal(grouped.scales, grouped.scales.astype(np.float16))


@pytest.mark.parametrize("name", ["ct int4", "ct int8 packed", "ct int8", "ct int4 zeros", "fp8 blocks", "gptq"])
@pytest.mark.parametrize("shape", [(3, 128), (17, 131), (130, 200), (1, 5)])
def test_shapes_that_fill_no_words_and_blocks(tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
    if name == "gptq":
        shape = (shape[0], -(-shape[1] // 8) * 8)
    tensors, wanted = stored(name, *shape)
    checkpoint = HFCheckpoint(folder(tmp_path, CASES[name].config, tensors))
    np.testing.assert_array_equal(checkpoint.read(WEIGHT, "float32"), wanted)
    grouped = checkpoint.read_grouped(WEIGHT)
    assert grouped is None or np.array_equal(expand(grouped), wanted)


def experts(count: int = 3) -> tuple[Tensors, list[np.ndarray[Any, Any]]]:
    made = [quantized.mxfp4(np.random.default_rng(seed), 6, 64) for seed in range(count)]
    blocks = np.stack([each.tensors["weight_packed"][1].reshape(6, 2, 16) for each in made])
    scales = np.stack([each.tensors["weight_scale"][1] for each in made])
    tensors: Tensors = {"up_proj_blocks": ("U8", blocks), "up_proj_scales": ("U8", scales)}
    return tensors, [each.values for each in made]


def test_mxfp4_experts_are_matrices_of_their_own(tmp_path: Path) -> None:
    tensors, values = experts()
    bias: Tensors = {"up_proj_bias": ("F32", np.zeros((3, 6), np.float32))}
    checkpoint = HFCheckpoint(folder(tmp_path, {"quant_method": "mxfp4"}, tensors | bias))
    names = [f"{MODULE}.{i}.up_proj.weight" for i in range(3)]
    assert set(checkpoint.names()) == {*names, NORM, f"{MODULE}.up_proj_bias"}
    for name, wanted in zip(names, values, strict=True):
        np.testing.assert_array_equal(checkpoint.read(name, "float32"), wanted)
        grouped = checkpoint.read_grouped(name)
        assert grouped is not None and np.array_equal(expand(grouped), wanted)


def test_mxfp4s_largest_exponent_is_no_number(tmp_path: Path) -> None:
    tensors = stored("ct mxfp4").tensors
    tensors["weight_scale"][1][0, :3] = 255, 254, 0
    values = HFCheckpoint(folder(tmp_path, CASES["ct mxfp4"].config, tensors)).read(WEIGHT, "float32")
    codes = tensors["weight_packed"][1]
    assert np.isnan(values[0, :32]).all()
    first = quantized.E2M1[np.stack([codes[0] & 15, codes[0] >> 4], axis=-1).reshape(-1)]
    with np.errstate(over="ignore"):  # 4 and 6 times 2^127 are infinite
        np.testing.assert_array_equal(values[0, 32:64], (first[32:64] * 2.0**127).astype(np.float32))
    np.testing.assert_array_equal(values[0, 64:96], first[64:96] * 2.0**-127)


def test_every_byte_of_e4m3(tmp_path: Path) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(2, 128)
    tensors: Tensors = {"weight": ("F8_E4M3", every), "weight_scale": ("F32", np.float32(1).reshape(1))}
    found = HFCheckpoint(folder(tmp_path, CASES["fp8 one"].config, tensors)).read(WEIGHT, "float32")
    np.testing.assert_array_equal(found.reshape(-1), quantized.E4M3.astype(np.float32))
    assert np.signbit(found.reshape(-1)[128])


@pytest.mark.parametrize("name", ["fp8 one", "ct fp8", "ct int8"])
def test_scales_of_activations_are_left_out_and_told_of(tmp_path: Path, name: str) -> None:
    one = ("F32", np.ones(1, np.float32))
    cache = {"model.layers.0.self_attn.k_scale": one}
    checkpoint = opened(tmp_path, name, input_scale=one, **cache)
    assert set(checkpoint.names()) == {WEIGHT, NORM}
    np.testing.assert_array_equal(checkpoint.read(WEIGHT, "float32"), stored(name).values)
    assert checkpoint.notes == ("2 scales of activations: only weights are quantised",)
    assert opened(tmp_path / "without", name).notes == ()


def test_modules_that_were_kept_are_plain(tmp_path: Path) -> None:
    """What is quantised is seen from the tensors; a list that says otherwise is a contradiction."""
    plain = {"lm_head.weight": ("BF16", np.full((4, 8), 0x3F80, np.uint16))}
    for name in ("awq", "gptq", "fp8 blocks", "ct int4"):
        tensors = stored(name).tensors | plain
        key = "ignore" if name == "ct int4" else "modules_to_not_convert"
        config = CASES[name].config | {key: ["lm_head", "re:.*gate$"] if name == "ct int4" else ["lm_head"]}
        checkpoint = HFCheckpoint(folder(tmp_path / name, config, tensors))
        assert checkpoint.info("lm_head.weight").dtype == "bf16"
        assert (checkpoint.read("lm_head.weight", "float32") == 1).all()
        assert checkpoint.read_grouped("lm_head.weight") is None
        for kept in (MODULE, "mlp.down_proj", "down_proj", "layers.0"):
            where = folder(tmp_path / f"{name} {kept}", config | {key: [kept]}, tensors)
            refused(lambda where=where: HFCheckpoint(where), MODULE, repr(kept), kind=ModelFileError)
        for other in ("own_proj", "mlp.down", "re:.*"):
            HFCheckpoint(folder(tmp_path / "other", config | {key: [other]}, tensors)).close()


def test_without_a_config_nothing_is_quantised(tmp_path: Path) -> None:
    checkpoint = HFCheckpoint(folder(tmp_path, None, stored("awq").tensors))
    assert set(checkpoint.names()) == {NORM, *(f"{MODULE}.{ending}" for ending in stored("awq").tensors)}
    refused(lambda: checkpoint.read(f"{MODULE}.qweight", "float32"), "is I32", kind=UnsupportedModelError)


@pytest.mark.parametrize("name", ["awq", "gptq", "ct int4", "fp8 blocks", "ct mxfp4"])
def test_fingerprint_follows_every_tensor(tmp_path: Path, name: str) -> None:
    tensors = stored(name).tensors
    seen = {HFCheckpoint(folder(tmp_path, CASES[name].config, tensors)).fingerprint()}
    assert HFCheckpoint(folder(tmp_path, CASES[name].config, tensors)).fingerprint() in seen
    for dtype, values in tensors.values():
        if dtype not in ("I64",):
            values.reshape(-1).view(np.uint8)[0] ^= 1
        seen.add(HFCheckpoint(folder(tmp_path, CASES[name].config, tensors)).fingerprint())
    assert len(seen) == 1 + sum(dtype != "I64" for dtype, _ in tensors.values())


UNSUPPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "method": ("awq", {"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
    "no method": ("awq", {"quant_method": None}, "quant_method"),
    "method a list": ("awq", {"quant_method": ["awq"]}, "quant_method"),
    "awq bits": ("awq", {"bits": 3}, "bits = 3"),
    "awq version": ("awq", {"version": "gemv"}, "'gemv'"),
    "awq symmetric": ("awq", {"zero_point": False}, "zero_point = False"),
    "gptq bits": ("gptq", {"bits": 3}, "bits = 3: supported: 4, 8"),
    "gptq bits true": ("gptq", {"bits": True}, "bits = True"),
    "gptq format": ("gptq", {"checkpoint_format": "marlin"}, "'marlin'"),
    "gptq marlin": ("gptq", {"is_marlin_format": True}, "is_marlin_format"),
    "gptq dynamic": ("gptq", {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
    "fp8 format": ("fp8 blocks", {"fmt": "e5m2"}, "'e5m2'"),
    "ct format": ("ct int4", {"format": "marlin-24"}, "'marlin-24'"),
    "ct sparse": ("ct int4", {"sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config"),
    "ct transforms": ("ct int4", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    "ct bits": ("ct int4", {"config_groups": {"g": {"weights": {"num_bits": 3}}}}, "num_bits = 3"),
    "ct strategy": ("ct int4", {"config_groups": {"g": {"weights": {"strategy": "token"}}}}, "'token'"),
    "ct type": ("ct int4", {"config_groups": {"g": {"weights": {"type": "nf"}}}}, "'nf'"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_named(tmp_path: Path, case: str) -> None:
    name, changes, word = UNSUPPORTED[case]
    path = folder(tmp_path, CASES[name].config | changes, stored(name).tensors)
    refused(lambda: HFCheckpoint(path), "config.json: quantization_config", word, "support", kind=UnsupportedModelError)


def test_supported_methods_are_listed(tmp_path: Path) -> None:
    path = folder(tmp_path, {"quant_method": "hqq"}, {})
    refused(lambda: HFCheckpoint(path), *METHODS, kind=UnsupportedModelError)


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("awq", {"group_size": 0}, "group_size"),
        ("awq", {"group_size": "128"}, "group_size"),
        ("awq", {"group_size": -2}, "group_size"),
        ("awq", {"group_size": 96}, f"'{MODULE}.qweight'"),
        ("awq", {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ("awq", {"modules_to_not_convert": [1]}, "modules_to_not_convert"),
        ("fp8 blocks", {"weight_block_size": [128]}, "weight_block_size"),
        ("fp8 blocks", {"weight_block_size": [0, 128]}, "weight_block_size"),
        ("fp8 blocks", {"weight_block_size": [64, 64]}, f"'{MODULE}.weight_scale_inv'"),
        ("ct int4", {"config_groups": None}, "config_groups"),
        ("ct int4", {"config_groups": {"g": 3}}, "config_groups.g"),
        ("ct int4", {"config_groups": {"g": {"weights": {"num_bits": 8}}}}, f"'{MODULE}.weight_scale'"),
        ("ct int4", {"config_groups": {}}, f"'{MODULE}.weight_scale'"),
        ("ct fp8 blocks", {"config_groups": {}}, f"'{MODULE}.weight_scale'"),
    ],
)
def test_a_config_that_cannot_be_is_refused(tmp_path: Path, name: str, changes: dict[str, Any], word: str) -> None:
    path = folder(tmp_path, CASES[name].config | changes, stored(name).tensors)
    refused(lambda: HFCheckpoint(path), word, kind=ModelFileError)


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    for section in ("awq", ["awq"], 4):
        path = folder(tmp_path, section, {})  # type: ignore[arg-type]
        refused(lambda path=path: HFCheckpoint(path), "quantization_config", kind=ModelFileError)


@pytest.mark.parametrize("name", CASES)
def test_missing_tensors_are_named(tmp_path: Path, name: str) -> None:
    for ending in stored(name).tensors:
        if ending in ("qweight", "weight", "weight_packed", "g_idx", "weight_g_idx"):
            continue  # these say that there is a matrix, or that its columns are in another order
        if ending == "weight_zero_point" and CASES[name].kept is None:
            continue
        wanted = "weight_scale" if ending == "weight_scale_inv" else ending
        refused(lambda e=ending: opened(tmp_path, name, **{e: None}), f"'{MODULE}.{wanted}'", kind=ModelFileError)


def reshaped(values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Wrong shapes: a row more, none, an axis more, one axis."""
    return [np.concatenate([values, values[:1]]), values[:0], values[None], values.reshape(-1), values[:, :-1]]


@pytest.mark.parametrize("name", CASES)
def test_damaged_shapes_and_dtypes_are_named(tmp_path: Path, name: str) -> None:
    """Every tensor of every format in other shapes and dtypes: refused when it is opened, or read as what it says."""
    for ending, (dtype, values) in stored(name).tensors.items():
        wrong = [(dtype, shape) for shape in reshaped(values)] if values.ndim == 2 else []
        wrong += [("F64", values.astype(np.float64)), ("I64", values.astype(np.int64))]
        for other in wrong:
            try:
                checkpoint = opened(tmp_path, name, **{ending: other})
            except ModelFileError as error:
                assert f"tensor '{MODULE}." in str(error)
                continue
            # Sizes are found from these tensors, so that others may fit by chance.
            assert ending == "weight_shape" or other[1].size or ending in ("weight", "weight_packed", "qweight")
            for held in checkpoint.names():
                if held == WEIGHT and checkpoint.info(held).dtype == CASES[name].kind:
                    checkpoint.read_grouped(held)
                    assert checkpoint.read(held, "float32").shape == checkpoint.info(held).shape


@pytest.mark.parametrize("name", ["gptq act-order", "ct act-order"])
@pytest.mark.parametrize("group", [-1, 1000])
def test_a_group_that_there_is_not_is_refused(tmp_path: Path, name: str, group: int) -> None:
    ending = "weight_g_idx" if name.startswith("ct") else "g_idx"
    index = stored(name).tensors[ending][1].copy()
    index[5] = group
    refused(lambda: opened(tmp_path, name, **{ending: ("I32", index)}), f".{ending}'", str(group), kind=ModelFileError)


def test_zeros_of_a_symmetric_matrix_must_be_in_the_middle(tmp_path: Path) -> None:
    tensors = stored("gptq").tensors
    tensors["qzeros"][1][1, 2] ^= 1 << 9
    checkpoint = HFCheckpoint(folder(tmp_path, CASES["gptq"].config, tensors))
    for read in (lambda: checkpoint.read_grouped(WEIGHT), lambda: checkpoint.read(WEIGHT, "float32")):
        refused(read, f"'{MODULE}.qzeros'", "sym", kind=ModelFileError)
    points = np.zeros((ROWS, 1), np.int8)
    name = "ct int8"
    checkpoint = opened(tmp_path, name, weight_zero_point=("I8", points))
    np.testing.assert_array_equal(checkpoint.read(WEIGHT, "float32"), stored(name).values)
    points[3] = 1
    checkpoint = opened(tmp_path, name, weight_zero_point=("I8", points))
    refused(lambda: checkpoint.read_grouped(WEIGHT), f"'{MODULE}.weight_zero_point'", kind=ModelFileError)


def test_one_matrix_may_not_be_there_twice(tmp_path: Path) -> None:
    plain = ("F32", np.zeros((ROWS, COLUMNS), np.float32))
    refused(lambda: opened(tmp_path, "awq", weight=plain), f"'{WEIGHT}'", kind=ModelFileError)


@pytest.mark.parametrize(
    ("blocks", "scales"),
    [((3, 6, 2, 15), (3, 6, 2)), ((3, 6, 2), (3, 6, 2)), ((3, 6, 2, 16), (3, 6, 1)), ((0, 6, 2, 16), (0, 6, 2))],
)
def test_damaged_experts_are_named(tmp_path: Path, blocks: tuple[int, ...], scales: tuple[int, ...]) -> None:
    tensors: Tensors = {
        "up_proj_blocks": ("U8", np.zeros(blocks, np.uint8)),
        "up_proj_scales": ("U8", np.zeros(scales, np.uint8)),
    }
    path = folder(tmp_path, {"quant_method": "mxfp4"}, tensors)
    refused(lambda: HFCheckpoint(path), f"'{MODULE}.up_proj_", kind=ModelFileError)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_headers_never_crash(tmp_path: Path, seed: int) -> None:
    """Bytes of header and config changed at random: a ModelError, or a checkpoint that can be read."""
    rng = np.random.default_rng(seed)
    name = list(CASES)[seed % len(CASES)]
    path = folder(tmp_path, CASES[name].config, stored(name).tensors)
    for file in ("model.safetensors", "config.json"):
        whole = bytearray((path / file).read_bytes())
        end = int.from_bytes(whole[:8], "little") + 8 if file.endswith("safetensors") else len(whole)
        for _ in range(25):
            damaged = bytearray(whole)
            for at in rng.integers(8 if end < len(whole) else 0, end, rng.integers(1, 4)):
                damaged[at] = rng.choice(list(b'0123456789-"[]{},:truefalsn'))
            (path / file).write_bytes(damaged)
            try:
                checkpoint = HFCheckpoint(path)
                for held in checkpoint.names():
                    checkpoint.hollow_grouped(held)
                    checkpoint.read_grouped(held)
                    checkpoint.read(held, "float32")
            except (ModelFileError, UnsupportedModelError):
                pass
        (path / file).write_bytes(whole)
