"""Flags from a YAML file: what wins over what, and how mistakes in it are told."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from octavo.cli.config_file import add_config_flag, load, words_of
from octavo.cli.flags import ENGINE_GROUPS, add_flags, read_group
from octavo.cli.parser import Parser
from octavo.cli.vllm_flags import add_old_flags
from octavo.config import CacheConfig, HTTPConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from octavo.errors import ConfigError


def parse(*words: str, environ: dict[str, str] | None = None) -> argparse.Namespace:
    parser = Parser("octavo test", "test")
    parser.add_argument("model", nargs="?")
    add_config_flag(parser, environ or {})
    add_flags(parser, (*ENGINE_GROUPS, HTTPConfig))
    add_old_flags(parser)
    return parser.parse(words)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: m.gguf\nmax_num_seqs: 8\nport: 1234\napi-key: [a, b]\nmax-num-batched-tokens: 2K\n"
        "no-vllm-metric-names: true\nenable-prefix-caching: false\nseed:\ngpu-memory-utilization: 0.25\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 3}\nswap-space: 1\ndownload-dir: null\n"
    )
    return path


def test_a_file_gives_flags(file: Path) -> None:
    args = parse("--config", str(file))
    assert read_group(ModelConfig, args, {}).model == "m.gguf"
    scheduler = read_group(SchedulerConfig, args, {})
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (8, 2048)
    http = read_group(HTTPConfig, args, {})
    assert (http.port, http.api_key, http.vllm_metric_names) == (1234, ("a", "b"), False)
    cache = read_group(CacheConfig, args, {})
    assert (cache.enable_prefix_caching, cache.memory_fraction, cache.swap_space_bytes) == (False, 0.25, 1 << 30)
    drafting = read_group(SpeculationConfig, args, {}).drafting
    assert drafting is not None and drafting.num_speculative_tokens == 3


def test_the_command_line_wins_then_the_environment_then_the_file(file: Path) -> None:
    args = parse("--port=1", environ={"OCTAVO_CONFIG": str(file)})
    assert read_group(HTTPConfig, args, {"OCTAVO_PORT": "2"}).port == 1
    args = parse(environ={"OCTAVO_CONFIG": str(file)})
    assert read_group(HTTPConfig, args, {"OCTAVO_PORT": "2"}).port == 2
    assert read_group(HTTPConfig, args, {}).port == 1234
    assert read_group(HTTPConfig, parse(), {}).port == 8000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-modle-len: 5", "serve.yaml: no such flag: --max-modle-len; did you mean --max-model-len?"),
        ("port: many", "serve.yaml: argument --port: 'many' must be an integer"),
        ("port: true", "serve.yaml: argument --port: expected one argument"),
        ("tensor-parallel-size: 2", "serve.yaml: --tensor-parallel-size 2 is not supported"),
    ],
)
def test_a_mistake_is_told_with_the_files_name(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as exit_:
        parse("--config", str(path))
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and said in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["[1, 2]", "just a text", "config: other.yaml", "help: true", "3: 4"])
def test_a_document_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        words_of(load(path), path.name)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("a: [", r"YAML \(line 2, column 1\)"),
        ("a: !!python/object/apply:os.getcwd []", "YAML"),
        ("x" * (2 << 20), "a file of at most"),
    ],
)
def test_what_is_no_yaml_is_refused(text: str, allowed: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=allowed):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml.*a file to read"):
        load(tmp_path / "nothing.yaml")
