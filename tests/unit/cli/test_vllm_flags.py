"""Scripts written for vLLM go on working, or are told why not."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from octavo.cli.flags import ENGINE_GROUPS, add_flags, flags_of, read_group
from octavo.cli.parser import Parser
from octavo.cli.vllm_flags import OLD_FLAGS, add_old_flags
from octavo.config import CacheConfig, HTTPConfig, ModelConfig, SchedulerConfig, SpeculationConfig

GROUPS = (*ENGINE_GROUPS, HTTPConfig)

VLLM = """
served-model-name host port uds api-key tokenizer tokenizer-mode trust-remote-code dtype seed max-model-len quantization
enforce-eager revision max-logprobs logprobs-mode generation-config override-generation-config hf-overrides load-format
download-dir block-size gpu-memory-utilization kv-cache-memory-bytes kv-cache-dtype num-gpu-blocks-override
enable-prefix-caching prefix-caching-hash-algo chat-template chat-template-content-format response-role
enable-prompt-tokens-details enable-force-include-usage enable-log-requests disable-log-stats
disable-uvicorn-access-log allowed-origins allowed-methods allowed-headers root-path api-server-count
enable-sleep-mode performance-mode fingerprint-mode max-num-batched-tokens max-num-seqs max-num-active-seqs
max-num-queued-reqs max-num-queued-tokens scheduling-policy enable-chunked-prefill long-prefill-token-threshold
watermark scheduler-reserve-full-isl async-scheduling stream-interval scheduler-cls tensor-parallel-size
pipeline-parallel-size data-parallel-size enable-expert-parallel distributed-executor-backend speculative-config
kv-transfer-config kv-events-config kv-offloading-size kv-offloading-backend cpu-offload-gb enable-lora max-loras
max-lora-rank lora-modules limit-mm-per-prompt enable-request-id-headers sse-keep-alive-interval max-log-len
otlp-traces-endpoint kv-cache-metrics kv-cache-metrics-sample ssl-keyfile ssl-certfile middleware shutdown-timeout
optimization-level attention-backend runner convert task swap-space preemption-mode use-v2-block-manager
"""
"""The flags of its server that scripts carry, those that are gone by now included."""


def parser() -> Parser:
    made = Parser("octavo test", "test")
    made.add_argument("model", nargs="?")
    add_flags(made, GROUPS)
    add_old_flags(made)
    return made


def parse(*words: str) -> argparse.Namespace:
    return parser().parse(words)


def test_every_flag_of_vllms_has_an_answer() -> None:
    known = {name.removeprefix("--") for name in parser()._option_string_actions}
    assert [name for name in VLLM.split() if name not in known] == []


def test_no_name_is_there_twice() -> None:
    own = {name for group in GROUPS for flag in flags_of(group) for name in (flag.name, *flag.aliases)}
    old = [flag.name for flag in OLD_FLAGS]
    assert len(old) == len(set(old)) and not own & set(old)


@pytest.mark.parametrize("words", [["--enforce-eager"], ["--no-enable-log-requests"], ["--max-log-len", "5"]])
def test_what_means_nothing_here_is_accepted_with_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse("m", *words).model == "m"
    said = capsys.readouterr()
    assert said.out == "" and re.fullmatch(rf"octavo test: note: {' '.join(words)}: [^\n]+\n", said.err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size 2 is not supported: one process computes"),
        (["-tp=4"], "-tp 4 is not supported"),
        (["--no-enable-chunked-prefill"], "--no-enable-chunked-prefill is not supported: long prompts are always"),
        (["--enable-lora"], "--enable-lora is not supported: there are no adapters yet"),
        (["--middleware", "a.b"], "--middleware a.b is not supported: no code is loaded into the server"),
        (["--kv-transfer-config", "{}"], "--kv-transfer-config {} is not supported"),
        (
            ["--structured-outputs-config", '{"backend": "x", "enable_in_reasoning": true}'],
            "enable_in_reasoning is not",
        ),
        (["--structured-outputs-config", "[]"], "argument --structured-outputs-config: must be a JSON object"),
        (
            ["--structured-outputs-config", '{"speed": 1}'],
            "there is no 'speed'; there are reasoning_parser and",
        ),
        (["--swap-space", "much"], "argument --swap-space: 'much' must be a number"),
    ],
)
def test_what_would_change_something_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*words)
    assert exit_.value.code == 2 and said in capsys.readouterr().err


def test_other_names_reach_their_settings() -> None:
    args = parse("--swap-space", "0.5", "--async-scheduling", "--max_num_active_seqs=3", "-q", "int8", "-tp", "1")
    assert read_group(CacheConfig, args, {}).swap_space_bytes == 1 << 29
    assert read_group(SchedulerConfig, args, {}) == SchedulerConfig(depth=2, max_num_seqs=3)
    assert read_group(ModelConfig, args, {}).quantization == "int8"
    args = parse("--structured-outputs-config", '{"backend": "xgrammar", "reasoning_parser": "qwen3"}')
    assert read_group(HTTPConfig, args, {}).reasoning_parser == "qwen3"
    for word in ("auto", "-1"):
        assert read_group(ModelConfig, parse(f"--max-model-len={word}"), {}).max_model_len is None


def test_json_may_come_in_parts() -> None:
    words = ("--speculative-config.method", "ngram", "--speculative_config.num-speculative-tokens=3", "m")
    drafting = read_group(SpeculationConfig, parse(*words), {}).drafting
    assert drafting is not None and (drafting.method, drafting.num_speculative_tokens) == ("ngram", 3)


def test_help_of_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    for word, there, absent in (("KV memory", "--block-size", "--port"), ("max_n", "--max-num-seqs", "--block-size")):
        with pytest.raises(SystemExit) as exit_:
            parse(f"--help={word}")
        shown = capsys.readouterr().out
        assert exit_.value.code == 0 and there in shown and absent not in shown
    with pytest.raises(SystemExit) as exit_:
        parse("--help=zzz")
    assert exit_.value.code == 2 and "KV memory; What one step" in capsys.readouterr().err


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    assert all(f"| `--{flag.name}`" in page for flag in OLD_FLAGS)
