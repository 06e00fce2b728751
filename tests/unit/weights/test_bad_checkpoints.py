"""Whatever is in a checkpoint, it either runs or is refused in one line, soon and in little memory.

`OCTAVO_CHECKPOINTS=20000` draws so many mutations, other ones each time (OCTAVO_SEED=N for the same again).
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from fuzz import checkpoints
from fuzz.checkpoints import CONFIG, INDEX, SPOIL, TOKENIZER, WEIGHTS, Files
from octavo import LLM, SamplingParams
from octavo.cli.inspect_model import inspect_model
from octavo.config import EngineConfig
from octavo.errors import OctavoError

COUNT = int(os.environ.get("OCTAVO_CHECKPOINTS", "300"))
SEED = int(os.environ.get("OCTAVO_SEED") or (random.SystemRandom().getrandbits(32) if COUNT > 300 else 1))
LIMIT_S = 4.0
LIMIT_BYTES = 400 << 20
"""Beyond what the process held before; a tiny model that runs takes some ten MiB."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return checkpoints.bases(tmp_path_factory.mktemp("bases"))


def outcome(path: Path) -> str:
    """What becomes of a checkpoint: "runs", or why not."""
    settings = {"num_blocks": 16, "num_threads": 1}
    try:
        inspect_model(EngineConfig.of(model=str(path), host="inline", **settings))
        with_tokens = LLM(str(path), **settings)
        try:
            with_tokens.generate(["a b"], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        finally:
            with_tokens.close()
    except OctavoError as error:
        assert str(error).isprintable(), repr(str(error))
        assert len(str(error)) < 2000
        return str(error)
    return "runs"


def bounded(path: Path) -> str:
    """The same, in bounded time and memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, start = _memory("VmRSS"), time.perf_counter()
    found = outcome(path)
    assert time.perf_counter() - start < LIMIT_S
    assert _memory("VmHWM") - before < LIMIT_BYTES
    return found


def _memory(what: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10


def test_the_bases_are_sound(bases: dict[str, Files], tmp_path: Path) -> None:
    for name, files in bases.items():
        found = bounded(checkpoints.write(tmp_path / name, files))
        # GGUF files written by the tests have words that no pre-tokenizer is named for.
        assert found == "runs" or (name.startswith("gguf") and "pre-tokenizer" in found), f"{name}: {found}"


@pytest.mark.timeout(7200)
def test_mutations_run_or_are_refused(bases: dict[str, Files], tmp_path: Path) -> None:
    rng = random.Random(SEED)
    refused, problems = 0, []
    for number in range(COUNT):
        name = rng.choice(sorted(bases))
        what, files = checkpoints.mutated(bases[name], rng)
        folder = tmp_path / str(number)
        path = checkpoints.write(folder, files)
        try:
            refused += bounded(path) != "runs"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the panics of native libraries are no Exceptions
            problems.append(f"{name}: {what}: {type(error).__name__}: {error} (kept in {folder})")
            if len(problems) == 10:
                break
        else:
            shutil.rmtree(folder)
    assert not problems, f"seed {SEED}:\n" + "\n".join(problems)
    assert refused > COUNT // 4  # or they would test little


@pytest.mark.parametrize("how", SPOIL)
@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, TOKENIZER, "tokenizer_config.json"])
def test_files_that_are_none(bases: dict[str, Files], tmp_path: Path, name: str, how: str) -> None:
    found = bounded(checkpoints.spoilt(tmp_path / "m", bases["llama"], name, how))
    if name == "tokenizer_config.json" and how == "is missing":
        assert found == "runs"
    else:
        assert name in found, found


@pytest.mark.parametrize("how", SPOIL)
@pytest.mark.parametrize("name", ["generation_config.json", "chat_template.jinja", "special_tokens_map.json", INDEX])
def test_files_that_need_not_be_there(bases: dict[str, Files], tmp_path: Path, name: str, how: str) -> None:
    found = bounded(checkpoints.spoilt(tmp_path / "m", bases["llama"], name, how))
    harmless = name == INDEX or how == "is missing" or (name == "chat_template.jinja" and "is " in how)
    assert name in found or (harmless and found == "runs"), found
