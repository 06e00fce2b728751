from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from golden.family_cases import MODELS
from octavo.cli import main as cli
from octavo.cli.parser import Parser
from octavo.cli.plan import MOST_REQUESTS, Workers, add_arguments, drawn_lengths, make_requests, make_target
from octavo.cli.plan_model import device, model_shape, with_kv_dtype
from octavo.cli.plan_progress import PlanProgress, plan_progress
from octavo.cli.plan_target import Target
from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelError
from octavo.executor import local
from octavo.executor.local import LocalExecutor
from octavo.messages import EngineInfo
from octavo.models.families import decoder_spec
from octavo.sim.fitted import KNOTS, Fit, FittedCost
from octavo.sim.model_shape import Experts, LayerShape, alike
from octavo.sim.trials import Objectives, sustained
from octavo.weights.sources import resolve
from support.paths import TINYSTORIES
from support.simulations import request, small_system
from support.tiny_models import TinyLlama, write_tiny_llama

FREE = 1 << 30
COST = FittedCost(
    knots=KNOTS, token_s=(1e-4,) * (len(KNOTS) - 1), step_s=5e-3, chunked_s=0.0, logits_s=0.0, sampled_s=1e-5,
    decode_s=1e-5, context_s=1e-7, chunk_s=1e-4, pairs_s=1e-9, behind_s=1e-7,
)  # fmt: skip
SMALL = ("--lengths", "8:3", "--ttft-ms", "500", "--tpot-ms", "50")


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes of their own for the trials."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)


def fit_file(path: Path, info: EngineInfo) -> Path:
    """A fit that was not measured, for an engine like this."""
    names = ("weight_dtype", "kv_dtype", "kernel_path", "num_threads", "block_size")
    engine = {name: getattr(info, name) for name in names}
    fit = Fit(
        model=info.model, date="2026-01-01T00:00:00Z", machine={}, engine=engine, cost=COST, residuals={}, num_steps=1,
        rounds=1,
    )  # fmt: skip
    path.write_bytes(msgspec.json.encode(fit))
    return path


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["plan", *words, "--json", "-"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def target_of(*words: str) -> Target:
    parser = Parser("octavo plan", "")
    add_arguments(parser)
    return make_target(parser.parse(list(words)))


def flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


# ---- the plan's blocks are the server's


BYTES = {"kv_cache_memory_bytes": 3 << 20, "max_num_batched_tokens": 128}
BLOCKS = {"num_blocks": 77, "block_size": 8, "max_num_batched_tokens": 128}
SEARCHED = {"memory_fraction": 0.002, "kv_cache_dtype": "int8", "max_num_seqs": 9}
FRACTION = {"memory_fraction": 0.002, "max_num_batched_tokens": 64}


@pytest.mark.parametrize(
    ("settings", "model"),
    [(BYTES, None), (BLOCKS, None), (SEARCHED, None), (FRACTION, None)]
    + [(settings, model) for model in ("window", "gemma3", "qwen2-moe") for settings in (BYTES, FRACTION)],
    ids=str,
)
def test_the_number_of_blocks_is_what_the_server_prints(
    settings: dict[str, Any],
    model: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = MODELS | {"window": TinyLlama(window=32)}
    folder = TINYSTORIES if model is None else write_tiny_llama(tmp_path / "model", tiny[model])
    files = resolve(str(folder))
    config = EngineConfig.of(model=str(folder), **settings)
    monkeypatch.setattr(local, "available_bytes", lambda: FREE)
    fit = fit_file(tmp_path / "fit.json", LocalExecutor.preview(config, files)[0])
    report = planned(capsys, str(folder), "--fit", str(fit), *SMALL, *flags(settings))

    budget = report["settings"]["max_num_batched_tokens"]
    config = EngineConfig.of(model=str(folder), **(settings | {"max_num_batched_tokens": budget}))
    monkeypatch.setattr(local, "available_bytes", lambda: FREE - report["memory"]["weight_bytes"])
    executor = LocalExecutor.load(config, files)
    executor.close()
    info = executor.info
    found = report["memory"]
    same = ("num_blocks", "kv_bytes", "kv_bytes_per_token", "kv_groups", "max_model_len")
    assert {name: found[name] for name in same} == {name: getattr(info, name) for name in same}
    assert found["reason"] == info.kv_reason
    assert report["settings"]["block_size"] == info.block_size
    assert f"{report['memory']['num_blocks']} blocks" in info.kv_reason


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "qwen2-windows", "olmo3", "starcoder2", "mixtral", "qwen2-moe"])
@pytest.mark.parametrize(("block_size", "context"), [(8, 256), (16, 100), (16, 20)])
def test_an_accelerator_keeps_kv_as_the_server_does(name: str, block_size: int, context: int, tmp_path: Path) -> None:
    """The same groups of layers with the same windows, and pages of the same bytes."""
    folder = write_tiny_llama(tmp_path, MODELS[name])
    words = {"block_size": block_size, "max_model_len": context, "num_blocks": 80, "kv_cache_dtype": "float32"}
    _, kv_spec = LocalExecutor.preview(EngineConfig.of(model=str(folder), **words), resolve(str(folder)))
    words |= {"max_num_batched_tokens": 64, "num_devices": 1}
    target = target_of(str(folder), "--device", "h100", *SMALL, *flags(words))
    system = target.start.system
    assert system.kv_groups == kv_spec.groups
    assert target.memory(target.start)["kv_bytes"] == 80 * kv_spec.bytes_per_block
    assert system.max_model_len == kv_spec.longest(80, 64, context)
    assert target.start.cost.block_bytes == kv_spec.bytes_per_block


def test_windows_leave_room_for_a_longer_context(tmp_path: Path) -> None:
    """A window of 24 tokens and steps of 16: a sequence of 256 tokens holds 6 blocks in each of two groups, and 32 in
    the one without a window."""
    folder = write_tiny_llama(tmp_path, MODELS["gemma3"])
    words = ("--device", "h100", "--block-size", "8", "--max-num-batched-tokens", "16", *SMALL)
    assert target_of(str(folder), *words, "--num-blocks", "44").start.system.max_model_len == 256
    assert target_of(str(folder), *words, "--num-blocks", "43").start.system.max_model_len == 248
    assert target_of(str(folder), *words, "--num-blocks", "5").start.system.max_model_len == 8


def test_steps_of_more_tokens_leave_less_memory_for_kv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: FREE)
    settings = {"memory_fraction": 0.002, "block_size": 8}
    config = EngineConfig.of(model=str(TINYSTORIES), **settings)
    fit = fit_file(tmp_path / "fit.json", LocalExecutor.preview(config, resolve(str(TINYSTORIES)))[0])
    report = planned(capsys, str(TINYSTORIES), "--fit", str(fit), *SMALL, *flags(settings))
    tried = [(one["value"], one["num_blocks"]) for one in report["alternatives"]]
    assert [budget for budget, _ in tried] == [32, 64, 128, 256, 512]
    blocks = [num_blocks for _, num_blocks in tried]
    assert blocks == sorted(blocks, reverse=True) and blocks[0] > blocks[-1]


# ---- reports


def test_a_plan_for_an_accelerator_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("opt-13b", "--device", "a100-80gb", "--num-devices", "1", "--kv-cache-dtype", "bfloat16", "--block-size",
             "16", "--max-num-batched-tokens", "2560", "--max-num-seqs", "8", "--lengths", "64:8", "--price-per-hour",
             "2", "--watts", "300", "--rate", "100")  # fmt: skip
    report = planned(capsys, *words)
    assert report["settings"] == {
        "num_devices": 1, "kv_cache_dtype": "bfloat16", "block_size": 16, "max_num_batched_tokens": 2560,
        "max_num_seqs": 8,
    }  # fmt: skip
    memory = report["memory"]
    assert memory["kv_bytes_per_token"] == 819_200
    assert memory["kv_bytes"] == memory["num_blocks"] * 16 * 819_200
    assert report["concurrent_requests"] == 8
    rate, tokens = report["sustained"]["requests_per_s"], report["sustained"]["output_tokens_per_s"]
    assert tokens == pytest.approx(rate * report["workload"]["mean_output_tokens"])
    assert report["costs"]["price_per_million_output_tokens"] == pytest.approx(2 / (tokens * 3600) * 1e6)
    assert report["costs"]["watt_hours_per_million_output_tokens"] == pytest.approx(300 / (tokens * 3600) * 1e6)
    assert report["asked"]["replicas"] == -(-100 // rate)
    assert report["asked"]["each"]["rate"] == pytest.approx(100 / report["asked"]["replicas"])
    assert [(one["setting"], one["chosen"]) for one in report["alternatives"]] == [
        ("num_devices", True), ("max_num_batched_tokens", True), ("kv_cache_dtype", True), ("block_size", True),
    ]  # fmt: skip
    assert len(report["curve"]) >= 6
    rates = [point["rate"] for point in report["curve"]]
    assert rates == sorted(rates)
    assert {
        "rate",
        "holds",
        "ttft_ms",
        "tpot_ms",
        "ttft_p50_ms",
        "tpot_p50_ms",
        "mean_running",
        "num_preemptions",
    } == set(report["curve"][0])


def test_settings_that_are_not_given_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-3.1-8b", "--device", "l4", "--device-memory", "22", "--lengths", "64:4", "--max-num-seqs", "16",
             "--num-devices", "1")  # fmt: skip
    report = planned(capsys, *words)
    tried: dict[str, list[Any]] = {}
    for one in report["alternatives"]:
        tried.setdefault(one["setting"], []).append(one["value"])
    assert tried == {
        "num_devices": [1],
        "max_num_batched_tokens": [512, 2048, 8192],
        "kv_cache_dtype": ["bfloat16", "int8"],
        "block_size": [8, 16, 32, 64],
    }
    for setting in tried:
        assert sum(one["chosen"] for one in report["alternatives"] if one["setting"] == setting) == 1
    refused = [one for one in report["alternatives"] if one["why_not"]]
    assert [one["value"] for one in refused] == [8192]  # its activations leave no room on 22 GB
    assert "nothing is left for KV" in refused[0]["why_not"]


def test_block_sizes_too_small_for_the_longest_request_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred blocks of 8 tokens are fewer than the requests have that 16 tokens a block leave in."""
    words = ("llama-3.1-8b", "--device", "h100", "--num-blocks", "100", "--num-devices", "1", "--lengths", "200:4",
             "--kv-cache-dtype", "bfloat16", "--max-num-batched-tokens", "2048", "--max-num-seqs", "4")  # fmt: skip
    report = planned(capsys, *words)
    sizes = {one["value"]: one["why_not"] for one in report["alternatives"] if one["setting"] == "block_size"}
    assert [size for size, why_not in sizes.items() if why_not is None] == [16, 32, 64]
    assert "max_model_len = 800: must be at least" in sizes[8]
    assert "so many tokens has the longest request" in sizes[8]


def test_the_table_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["plan", "opt-13b", "--device", "h100", "--num-devices", "1", "--kv-cache-dtype", "auto", "--block-size",
             "16", "--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--lengths", "64:4"]  # fmt: skip
    assert cli.main([*words, "--plot", str(tmp_path / "p.svg"), "--json", str(tmp_path / "p.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("opt-13b on h100", "blocks of 16 tokens", "requests/s", "alternatives", "steps simulated"):
        assert part in printed
    picture = (tmp_path / "p.svg").read_text()
    for part in ("time to first token (s)", "time per further token (ms)", "requests (1/s)", "objective", "sustained"):
        assert part in picture
    assert json.loads((tmp_path / "p.json").read_text())["model"] == "opt-13b"


def test_this_machine_is_measured_when_no_fit_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = (str(TINYSTORIES), "--num-blocks", "300", "--num-threads", "1", "--max-num-batched-tokens", "64",
             "--lengths", "16:8", "--max-num-seqs", "4", "--tpot-ms", "2000", "--ttft-ms", "60000")  # fmt: skip
    report = planned(capsys, *words)
    assert report["device"] == "cpu"
    assert "just now" in report["notes"][0]
    assert report["sustained"]["requests_per_s"] > 0


def test_trials_in_processes_of_their_own_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from octavo.sim.trials import Candidate

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    requests = [msgspec.structs.replace(request(float(i), 8, 4), token_ids=[2 + i] + [0] * 7) for i in range(100)]
    one = Candidate(num_devices=1, kv_dtype="bfloat16", system=small_system(), cost=COST)
    jobs = [partial(sustained, one, requests, Objectives(ttft_s=1.0, tpot_s=0.1), guess, 1.0) for guess in (5.0, 50.0)]
    with plan_progress() as progress, Workers(progress) as workers:
        assert workers.run_all("rates", jobs) == [job() for job in jobs]


LEFT_OUT = ("opt-13b", "--device", "h100", "--num-devices", "1", "--kv-cache-dtype", "auto", "--block-size", "16",
            "--max-num-batched-tokens", "2048", "--max-num-seqs", "4")  # fmt: skip


@pytest.mark.parametrize("kind", ["means", "file"])
def test_requests_longer_than_the_context_are_counted(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of lengths that are drawn, and of those in a file: one in four, here."""
    csv = tmp_path / "lengths.csv"
    csv.write_text("input_tokens,output_tokens\n" + "40,4\n" * 3 + "90,20\n")
    words = (*LEFT_OUT, "--max-model-len", "100", "--lengths", "50:10" if kind == "means" else str(csv))
    work = planned(capsys, *words)["workload"]
    total = work["num_requests"] + work["num_too_long"]
    assert total == pytest.approx(MOST_REQUESTS, rel=0.05)
    assert work["percent_too_long"] == pytest.approx(100 * work["num_too_long"] / total)
    expected = 0.25 if kind == "file" else (50 * math.exp(-100 / 50) - 10 * math.exp(-100 / 10)) / (50 - 10)
    assert work["num_too_long"] / total == pytest.approx(expected, abs=0.02)
    assert cli.main(["plan", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{work['num_too_long']:,} of {total:,} requests" in printed and "longer than the context" in printed


def test_those_that_are_left_come_once_a_second(tmp_path: Path) -> None:
    """A rate is that of the requests that are served."""
    csv = tmp_path / "lengths.csv"
    csv.write_text("input_tokens,output_tokens\n40,4\n90,20\n")
    parser = Parser("octavo plan", "")
    add_arguments(parser)
    args = parser.parse([*LEFT_OUT, "--max-model-len", "100", "--lengths", str(csv)])
    requests, num_left_out = make_requests(args, make_target(args))
    assert num_left_out == pytest.approx(len(requests), rel=0.01) and len(requests) > 2000
    assert requests[-1].arrival_s == pytest.approx(len(requests), rel=0.05)


def test_a_plan_shows_what_it_does_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "opt-13b", "--device", "h100", "--num-devices", "1", "--lengths", "64:4", "--max-num-seqs", "4",
             "--json", "-"]  # fmt: skip
    assert cli.main(words) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    told: list[str] = []
    begin = PlanProgress.begin

    def watched(self: PlanProgress, what: str, num_jobs: int | None = None) -> None:
        begin(self, what, num_jobs)
        told.append(f"{what} {num_jobs}")

    monkeypatch.setattr(PlanProgress, "begin", watched)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(words) == 0
    loud = capsys.readouterr()
    assert told[:3] == ["model and memory None", "requests None", "num_devices 1"]
    assert {what.split()[0] for what in told[3:]} == {"max_num_batched_tokens", "kv_cache_dtype", "block_size",
                                                      "sustained", "latencies"}  # fmt: skip
    assert "latencies" in loud.err
    one, other = json.loads(quiet.out), json.loads(loud.out)
    assert one | {"seconds": 0} == other | {"seconds": 0}


def test_each_simulation_of_a_plan_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with plan_progress() as progress, Workers(progress) as workers:
        seen: list[tuple[str, float, float | None]] = []

        def job() -> Any:
            (task,) = progress._bar.tasks
            seen.append((task.description, task.completed, task.total))

        workers.run_all("sizes", [job] * 3)
        workers.run_all("more", [job])
    assert seen == [("sizes", 0, 3), ("sizes", 1, 3), ("sizes", 2, 3), ("more", 0, 1)]


# ---- what is not right


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["opt-175b", "--device", "a100-40gb"], "num_devices = 8: must be more: opt-175b's weights take 43.6 GB"),
        (["opt-66b", "--device", "h100", "--num-devices", "1"], "num_devices = 1: must be more: opt-66b's weights"),
        (["opt-13b", "--device", "h100", "--num-devices", "7"], "a divisor of opt-13b's 40 heads"),
        (["opt-13b", "--device", "h1000"], "device = 'h1000': must be one of cpu, a100-40gb, a100-80gb, h100, h200"),
        (["nope", "--device", "h100"], "Shapes known without a file: opt-13b, opt-66b"),
        (["opt-13b", "--device", "h100", "--workload", "foo"], "workload = 'foo': must be one of sharegpt, alpaca"),
        (["opt-13b", "--device", "h100", "--lengths", "3000:10"], "together at most the context of 2048 tokens"),
        (["opt-13b", "--device", "h100", "--lengths", "no.csv"], "no.csv"),
        (["opt-13b", "--device", "h100", "--max-model-len", "4096"], "max_model_len = 4096: must be at most 2048"),
        (["opt-13b", "--device", "h100", "--max-model-len", "3", "--lengths", "CSV"], "at least 9: the shortest"),
        (["opt-13b", "--device", "custom"], "given with --device-memory, --bandwidth and --tflops"),
        (["opt-13b", "--device", "h100", "--tflops", "-1"], "tflops = -1"),
        (["opt-13b", "--device", "h100", "--rate", "0"], "rate = 0"),
        (["opt-13b", "--device", "h100", "--ttft-ms", "0"], "ttft_ms = 0.0: must be milliseconds above 0"),
        (["opt-13b", "--device", "h100", "--tpot-ms", "1e10"], "tpot_ms = 10000000000.0: must be milliseconds above 0"),
        (["opt-13b", "--device", "h100", "--tpot-ms", "nan"], "tpot_ms = nan: must be milliseconds above 0, at most"),
        (["opt-13b", "--device", "h100", "--percent", "0"], "percent = 0.0: must be from 1 to 100"),
        (["opt-13b", "--device", "h100", "--rate", "1e13"], "rate = 10000000000000.0: must be above 0, at most 1e+12"),
        (["opt-13b", "--device", "h100", "--kv-policy", "orca-max"], "kv_policy = 'orca-max': must be paged"),
        (["TINY", "--kv-policy", "orca-max"], "kv_policy = 'orca-max': must be paged"),
        (["opt-13b", "--device", "h100", "--preemption", "swap"], "preemption = 'swap': must be left out with"),
        (["opt-13b", "--device", "h100", "--quantization", "int4"], "quantization = 'int4': must be left out with"),
        (
            ["opt-13b", "--device", "h100", "--hf-overrides", '{"ffn_dim": 8}'],
            "hf_overrides = {'ffn_dim': 8}: must be left out for opt-13b, which is known by its shape alone",
        ),
        (
            ["TINY", "--device", "h100", "--hf-overrides", '{"num_layer": 8}'],
            "hf_overrides.num_layer = 8: must be left out: it changes nothing in this model",
        ),
        (["opt-13b", "--device", "h100", "--plot", "x.gif"], "ends in .png, .svg or .pdf"),
        (["opt-13b", "--device", "h100", "--fit", "x.json"], "only the device cpu is measured"),
        (["opt-13b", "--device", "h100", "--workload", "beam"], "workload = 'beam': must be one without beam searches"),
        (["llama-3.1-8b"], "device = 'cpu': must be an accelerator for llama-3.1-8b"),
        (["smollm2", "--tflops", "3"], "left out with the device cpu: this machine is measured"),
        (
            ["opt-13b", "--device", "a100-40gb", "--tpot-ms", "10", "--num-devices", "1", "--max-num-seqs", "4",
             "--lengths", "64:8"],
            "tpot_ms = 10.0: must be at least 2",
        ),
    ],
)  # fmt: skip
def test_an_impossible_plan_is_one_clear_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "lengths.csv"
    csv.write_text("input_tokens,output_tokens\n5,4\n8,9\n")
    words = [{"CSV": str(csv), "TINY": str(TINYSTORIES)}.get(word, word) for word in words]
    assert cli.main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_weights_that_do_not_fit_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: 300_000)
    assert cli.main(["plan", str(TINYSTORIES)]) == 2
    assert "weights fit: they take" in capsys.readouterr().err


# ---- models, devices, lengths


def test_a_model_is_known_by_its_name_its_config_and_its_folder(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "small", TinyLlama(num_layers=3, window=16))
    (folder / "model.safetensors").unlink()
    shape = model_shape(str(folder))
    assert shape == model_shape(str(folder / "config.json"))
    assert (shape.name, shape.layers, shape.num_kv_heads) == ("small", alike(3, window=16), 2)
    assert model_shape("Llama-3.1-8B").kv_bytes_per_token == 131_072
    with pytest.raises(ModelError):
        model_shape(str(tmp_path / "none.json"))


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_model(tmp_path: Path, name: str) -> None:
    """But for tables of positions, and embeddings narrower than the rest: they are taken to be as wide."""
    folder = write_tiny_llama(tmp_path, MODELS[name])
    spec = msgspec.structs.replace(decoder_spec(MODELS[name].config()), position_offset=None, embedding_size=None)
    assert model_shape(str(folder)).total_bytes / 2 == spec.num_parameters


def test_a_plan_for_an_accelerator_heeds_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "l4", "--num-devices", "1", "--kv-cache-dtype", "auto", "--block-size", "16",
             "--max-num-batched-tokens", "512", "--max-num-seqs", "4", "--lengths", "20:4")  # fmt: skip
    folder = write_tiny_llama(tmp_path / "small", TinyLlama(num_layers=3))
    for model in (folder, folder / "config.json"):
        plain = planned(capsys, str(model), *words)["memory"]["kv_bytes_per_token"]
        deeper = planned(capsys, str(model), *words, "--hf-overrides", '{"num_hidden_layers": 6}')
        assert deeper["memory"]["kv_bytes_per_token"] == 2 * plain


def test_layers_of_a_model_may_differ(tmp_path: Path) -> None:
    local, everything = LayerShape(window=24), LayerShape()
    gemma = model_shape(str(write_tiny_llama(tmp_path / "gemma", MODELS["gemma3"])))
    assert gemma.layers == (local, everything, local)
    routed = LayerShape(experts=Experts(num_experts=8, top_k=3, ffn=20, shared_ffn=28))
    qwen = model_shape(str(write_tiny_llama(tmp_path / "qwen", MODELS["qwen2-moe"])))
    assert qwen.layers == (routed, everything, routed)


def test_a_plan_says_what_it_takes_of_experts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "h200", "--num-devices", "1", "--kv-cache-dtype", "auto", "--block-size", "16",
             "--max-num-batched-tokens", "512", "--max-num-seqs", "4", "--lengths", "64:4")  # fmt: skip
    report = planned(capsys, "mixtral-8x7b", *words)
    assert any("experts uniformly" in note for note in report["notes"])
    assert report["sustained"]["requests_per_s"] > 0
    dense = planned(capsys, "qwen3-8b", *words)
    assert not any("experts" in note for note in dense["notes"])
    assert dense["memory"]["kv_groups"] == ""


def test_a_plan_tells_the_groups_of_layers_and_counts_what_they_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    words = ["plan", "gemma-3-1b", "--device", "l4", "--num-devices", "1", "--kv-cache-dtype", "auto", "--block-size",
             "16", "--max-num-batched-tokens", "512", "--max-num-seqs", "4", "--num-blocks", "700", "--lengths",
             "600:4", "--max-model-len", "3000", "--json", str(path)]  # fmt: skip
    assert cli.main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "7 groups of layers: 22 layers with a window of 512 tokens in 6 of up to 4" in printed
    report = json.loads(path.read_text())
    num_tokens = report["workload"]["mean_input_tokens"] + report["workload"]["mean_output_tokens"]
    assert num_tokens > 540  # then a window of 512 tokens is within 33 blocks of 16
    assert report["concurrent_requests"] == 700 // (6 * 33 + math.ceil(num_tokens / 16))


def test_an_mlp_without_a_gate_is_counted_as_such(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path, MODELS["starcoder2"])
    assert not model_shape(str(path)).gated


def test_int8_keys_and_values_carry_their_scales() -> None:
    shape = model_shape("llama-3.1-8b")
    assert with_kv_dtype(shape, "int8").kv_bytes_per_token == 2 * 8 * 32 * (128 + 4)
    assert with_kv_dtype(shape, "float32").kv_bytes_per_token == 2 * shape.kv_bytes_per_token


def test_a_device_may_be_made_of_numbers() -> None:
    numbers = {"memory_bytes": 48e9, "bandwidth_bytes_per_s": 1e12, "flops": 2e14}
    assert device("custom", numbers).memory_bytes == 48e9
    assert device("h100", {"memory_bytes": 48e9}).flops == 989e12
    with pytest.raises(ConfigError, match="flops"):
        device("custom", numbers | {"flops": float("nan")})


def test_drawn_lengths_have_the_means_asked_for() -> None:
    pairs = drawn_lengths(200, 50, 100_000, Random(0))
    assert sum(i for i, _ in pairs) / len(pairs) == pytest.approx(200, rel=0.05)
    assert sum(o for _, o in pairs) / len(pairs) == pytest.approx(50, rel=0.05)
    assert drawn_lengths(200, 50, 300, Random(0)) == pairs, "what is too long is left out later, and counted"
