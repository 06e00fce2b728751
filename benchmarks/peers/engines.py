"""The engines that are compared: what each is, how its server is started, and which workloads it runs.

A new engine is one more row of `ENGINES`. Paths are under the folder that `setup.sh` fills.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from octavo.cli.bench_workload import Item

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("OCTAVO_PEERS", Path.home() / ".cache" / "octavo-peers"))
MODELS, PEERS = ROOT / "models", ROOT / "peers"
BF16_FOLDER = MODELS / "smollm2-135m-bf16"
Q4_1_FILE = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN_FILE = MODELS / "Qwen2.5-Coder-0.5B-Instruct.gguf"
QWEN_Q8_0 = MODELS / "qwen2.5-coder-0.5b-q8_0.gguf"

OCTAVO = "Octavo"
SERVED_NAME = "bench"
ALL_WORKLOADS = ("single", "chat", "prefix", "nsample", "long")
OPEN_LOOP = ("poisson50", "poisson80", "poisson95")

Rewrite = Callable[[Item, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One server in one configuration."""

    kind: str
    """Who makes it."""
    group: str
    """bf16, quantised, or qwen, another model: only engines of one group are compared."""
    weights: str
    kv: str
    command: Callable[[int], list[str]]
    """Words that start its server on a port, in the foreground."""
    workloads: tuple[str, ...] = ALL_WORKLOADS
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = SERVED_NAME
    tokenizer: Path = BF16_FOLDER
    """The model in whose tokens its prompts are counted; one for a group, or it would compare different prompts."""
    ready_path: str = "/health"
    ready_timeout_s: float = 120.0
    streams_n: bool = True
    """Whether several answers to one prompt come token by token; if not, their latencies mean nothing."""
    takes_n: bool = True
    """Whether one request may ask for several answers; if not, each is a request of its own."""
    rewrite: Rewrite | None = None


_ROOM = ("--kv-cache-memory-bytes", "2G", "--max-num-batched-tokens", "192")
"""KV memory as the others have it; steps that hold a prompt of 128 tokens beside 16 sequences that decode."""


def _octavo(group: str, weights: str, kv: str, model: Path, *flags: str) -> Engine:
    def command(port: int) -> list[str]:
        words = [sys.executable, "-m", "octavo.cli.main", "serve", str(model), "--port", str(port)]
        return [*words, "--served-model-name", SERVED_NAME, "--log-level", "warning", *_ROOM, *flags]

    everything = (*ALL_WORKLOADS, "chat64", *OPEN_LOOP)
    return Engine(kind=OCTAVO, group=group, weights=weights, kv=kv, command=command, workloads=everything)


def _llamacpp(group: str, weights: str, model: str, *workloads: str) -> Engine:
    def command(port: int) -> list[str]:
        words = [str(PEERS / "lcpp/build/bin/llama-server"), "--model", str(MODELS / model), "--alias", SERVED_NAME]
        words += ["--host", "127.0.0.1", "--port", str(port), "--threads", "2", "--threads-batch", "2"]
        return [*words, "--parallel", "16", "--ctx-size", "67584", "--no-kv-unified", "--no-webui"]

    return Engine(
        kind="llama.cpp", group=group, weights=weights, kv="f16", command=command, workloads=workloads or ALL_WORKLOADS
    )


def _openvino(group: str, weights: str, model: str) -> Engine:
    def command(port: int) -> list[str]:
        words = [str(PEERS / "ov/bin/python"), str(HERE / "openvino_server.py"), str(MODELS / model)]
        return [*words, "--port", str(port), "--precision", "bf16", "--threads", "2"]

    return Engine(
        kind="OpenVINO GenAI", group=group, weights=weights, kv="f16 (its default)", command=command, streams_n=False
    )


def _vllm() -> Engine:
    def command(port: int) -> list[str]:
        words = [str(PEERS / "vllm/bin/vllm"), "serve", str(BF16_FOLDER), "--served-model-name", SERVED_NAME]
        return [*words, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "8192", "--dtype", "bfloat16"]

    preload = f"/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4:{PEERS}/vllm/lib/libiomp5.so"
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": preload,
    }
    return Engine(
        kind="vLLM CPU", group="bf16", weights="bf16", kv="bf16", command=command, environment=environment,
        ready_timeout_s=400.0,
    )  # fmt: skip


def _transformers() -> Engine:
    def command(port: int) -> list[str]:
        words = [str(PEERS / "hf/bin/transformers"), "serve", str(BF16_FOLDER), "--host", "127.0.0.1"]
        words += ["--port", str(port), "--device", "cpu", "--dtype", "bfloat16", "--continuous-batching"]
        return [*words, "--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "512"]

    return Engine(
        kind="transformers", group="bf16", weights="bf16", kv="bf16", command=command, workloads=("single",),
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}, model=str(BF16_FOLDER), takes_n=False,
        rewrite=_with_generation_config,
    )  # fmt: skip


def _with_generation_config(item: Item, body: dict[str, Any]) -> dict[str, Any]:
    """`transformers serve` knows no `ignore_eos`; a generation config without an end token does the same."""
    config = {
        "eos_token_id": -1,
        "pad_token_id": 2,
        "max_new_tokens": item.output_token_count,
        "do_sample": item.temperature > 0,
        "use_cache": True,
    }
    kept = {name: body[name] for name in ("model", "prompt", "stream")}
    return {**kept, "generation_config": json.dumps(config)}


def _qwen(engine: Engine) -> Engine:
    return replace(engine, weights=f"Qwen {engine.weights}", tokenizer=QWEN_FILE)


_KV_BF16, _KV_INT8 = ("--kv-cache-dtype", "bfloat16"), ("--kv-cache-dtype", "int8")
_STORED = ("--quantization", "auto")

ENGINES: dict[str, Engine] = {
    "octavo-bf16": _octavo("bf16", "bf16", "bf16", BF16_FOLDER, "--dtype", "bfloat16"),
    "octavo-q4_1": _octavo("quantised", "Q4_1 file", "bf16", Q4_1_FILE, *_STORED, *_KV_BF16),
    "octavo-q4_1-kv8": _octavo("quantised", "Q4_1 file", "int8", Q4_1_FILE, *_STORED, *_KV_INT8),
    "octavo-int8": _octavo("quantised", "int8", "bf16", BF16_FOLDER, "--quantization", "int8", *_KV_BF16),
    "octavo-int8-kv8": _octavo("quantised", "int8", "int8", BF16_FOLDER, "--quantization", "int8", *_KV_INT8),
    "vllm-bf16": _vllm(),
    "llamacpp-bf16": _llamacpp("bf16", "bf16", "smollm2-135m-bf16.gguf"),
    "llamacpp-q4_1": _llamacpp("quantised", "Q4_1 file", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "llamacpp-q8_0": _llamacpp("quantised", "Q8_0", "smollm2-135m-q8_0.gguf"),
    "openvino-bf16": _openvino("bf16", "f16", "smollm2-135m-ov-fp16"),
    "openvino-int8": _openvino("quantised", "int8", "smollm2-135m-ov-int8"),
    "transformers-bf16": _transformers(),
    # The file as it is, mostly Q5_0, which OpenVINO's reader of GGUF refuses. So also the same weights in Q8_0, a file
    # that all three read, and in OpenVINO's own format.
    "octavo-qwen": _qwen(_octavo("qwen", "Q4_K_M file", "bf16", QWEN_FILE, *_STORED, *_KV_BF16)),
    "octavo-qwen-q8_0": _qwen(_octavo("qwen", "Q8_0", "bf16", QWEN_Q8_0, *_STORED, *_KV_BF16)),
    "llamacpp-qwen": _qwen(_llamacpp("qwen", "Q4_K_M file", QWEN_FILE.name)),
    "llamacpp-qwen-q8_0": _qwen(_llamacpp("qwen", "Q8_0", QWEN_Q8_0.name)),
    "openvino-qwen-q8_0": _qwen(_openvino("qwen", "Q8_0", QWEN_Q8_0.name)),
    "openvino-qwen-int8": _qwen(_openvino("qwen", "int8", "qwen2.5-coder-0.5b-ov-int8")),
}

DEFAULT = (
    "octavo-bf16",
    "octavo-q4_1",
    "octavo-int8",
    "openvino-bf16",
    "openvino-int8",
    "llamacpp-bf16:single",
    "llamacpp-q4_1:single",
    "llamacpp-q8_0:single",
)
"""Engines of a run that names none: Octavo, and those that are the fastest peers of at least one workload."""
