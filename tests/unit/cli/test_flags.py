"""Flags come from the config fields; the environment gives defaults; mistakes get one clear line."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pytest

from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, flags_of, help_text, http_config, read_group
from octavo.cli.parser import Parser, integer, normalise
from octavo.config import CacheConfig, EngineConfig, ExecutionConfig, HTTPConfig, ModelConfig, SchedulerConfig
from octavo.errors import ConfigError

ALL_GROUPS = (*ENGINE_GROUPS, HTTPConfig)


def parse(*words: str) -> argparse.Namespace:
    parser = Parser("octavo test", "test")
    parser.add_argument("model", nargs="?")
    add_flags(parser, ALL_GROUPS)
    return parser.parse(words)


def read(group: type, *words: str, **environ: str) -> Any:
    return read_group(group, parse(*words), environ)


def test_every_field_is_a_flag_with_help() -> None:
    flags = [flag for group in ALL_GROUPS for flag in flags_of(group)]
    assert len(flags) == sum(len(dataclasses.fields(group)) for group in ALL_GROUPS)
    assert all(flag.help for flag in flags)
    names = [name for flag in flags for name in (flag.name, *flag.aliases)]
    assert len(names) == len(set(names)), "two fields share a flag name"


def test_defaults_are_those_of_the_classes() -> None:
    args = parse()
    assert engine_config(args) == EngineConfig()
    assert read_group(HTTPConfig, args, {}) == HTTPConfig()


def test_values_reach_their_fields() -> None:
    args = parse("m.gguf", "--block-size", "32", "--max-num-seqs=8", "--host", "0.0.0.0", "--engine-host", "inline")
    config = engine_config(args, model=args.model)
    assert (config.model.model, config.cache.block_size, config.scheduler.max_num_seqs) == ("m.gguf", 32, 8)
    assert config.execution.host == "inline"
    assert read_group(HTTPConfig, args, {}).host == "0.0.0.0"


def test_underscores_and_dashes_are_equal_in_names_and_untouched_in_values() -> None:
    assert read(ModelConfig, "--max_model_len", "64", "--model", "my_model").max_model_len == 64
    assert read(ModelConfig, "--chat_template=a_b.jinja").chat_template == "a_b.jinja"
    assert normalise(["--a_b", "c_d", "--", "--e_f"]) == ["--a-b", "c_d", "--", "--e_f"]


def test_aliases_name_the_same_field() -> None:
    assert read(CacheConfig, "--gpu-memory-utilization", "0.25").memory_fraction == 0.25


@pytest.mark.parametrize("words", [(), ("--vllm-metric-names",)])
def test_booleans_have_a_twin_that_turns_them_off(words: tuple[str, ...]) -> None:
    assert read(HTTPConfig, *words).vllm_metric_names is True
    assert read(HTTPConfig, *words, "--no-vllm-metric-names").vllm_metric_names is False


def test_lists_repeat_on_the_command_line_and_take_commas_in_the_environment() -> None:
    assert read(HTTPConfig, "--api-key", "a,b", "--api-key", "c").api_key == ("a,b", "c")
    assert read(HTTPConfig, OCTAVO_API_KEY="a,b").api_key == ("a", "b")
    assert read(HTTPConfig, "--api-key", "c", OCTAVO_API_KEY="a,b").api_key == ("c",)


def test_the_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    assert read(CacheConfig, OCTAVO_BLOCK_SIZE="64").block_size == 64
    assert read(CacheConfig, "--block-size", "8", OCTAVO_BLOCK_SIZE="64").block_size == 8
    assert read(CacheConfig, OCTAVO_BLOCK_SIZE="").block_size is None
    assert read(ExecutionConfig, OCTAVO_HOST="0.0.0.0").host == "process", "OCTAVO_HOST is the HTTP server's"
    assert read(HTTPConfig, OCTAVO_VLLM_METRIC_NAMES="off").vllm_metric_names is False


def test_the_environment_is_read_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "1K")
    monkeypatch.setenv("OCTAVO_PORT", "1234")
    args = parse()
    assert engine_config(args).scheduler == SchedulerConfig(max_num_seqs=1024)
    assert http_config(args).port == 1234


@pytest.mark.parametrize(
    ("name", "value"),
    [("OCTAVO_PORT", "http"), ("OCTAVO_VLLM_METRIC_NAMES", "maybe"), ("OCTAVO_SHUTDOWN_TIMEOUT", "long")],
)
def test_a_bad_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = '{value}': must be"):
        read(HTTPConfig, **{name: value})


@pytest.mark.parametrize(
    ("text", "value"),
    [("16", 16), ("-1", -1), ("2k", 2000), ("2K", 2048), ("1M", 1 << 20), ("1.5G", 3 << 29), ("2t", 2 * 10**12)],
)
def test_integers(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "0.0001k", "1kk", "infk", "nanK", "1 k 2"])
def test_not_integers(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        integer(text)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--max-modle-len", "5"], "no such flag: --max-modle-len; did you mean --max-model-len?"),
        (["--num_kv_blocks=5"], "no such flag: --num-kv-blocks; did you mean --num-blocks?"),
        (["m", "--zzz"], "no such flag: --zzz (see"),
        (["m", "another"], "unexpected argument 'another'"),
        (["--block-size", "many"], "argument --block-size: 'many' must be an integer, such as 4096 or 4K"),
        (["--engine-host", "gpu"], "argument --engine-host: 'gpu' must be one of inline, thread, process"),
        (["--block-size", "infK"], "argument --block-size: 'infK' must be an integer"),
        (["--max-model"], "no such flag: --max-model; did you mean --"),
    ],
)
def test_mistakes_get_one_line_and_status_2(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*words)
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert error.startswith("octavo test: error: ") and error.count("\n") == 1
    assert line in error


def test_help_shows_groups_defaults_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "a-secret-key")
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as exit_:
        parse("--help")
    shown = capsys.readouterr().out
    assert exit_.value.code == 0
    assert "a-secret-key" not in shown
    assert "KV memory:" in shown and "The HTTP server:" in shown
    assert "(default: 512)" in shown and "usage: octavo test [flags] [model]" in shown


def test_help_text_says_the_default() -> None:
    flags = {flag.field: help_text(flag) for flag in flags_of(HTTPConfig)}
    assert flags["port"].endswith("(default: 8000)")
    assert flags["vllm_metric_names"].endswith("(default: on)")
    assert "repeat" in flags["api_key"]


def test_a_list_may_come_as_json() -> None:
    assert read(HTTPConfig, "--api-key", '["a", "b"]', "--api-key", "c").api_key == ("a", "b", "c")
