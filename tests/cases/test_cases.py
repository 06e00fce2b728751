"""Plays every case of cases.jsonl that this surface allows, on `octavo serve`."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import chat_scenarios, core_scenarios, grammar_scenarios, memory_scenarios, resource_scenarios, scenarios
from cases.http_runner import ADMIN_KEY, HTTPRunner
from cases.runner import CASES
from support.repeating_chat import start_repeating_chat
from support.repeating_tokenizer import write_tokenizer
from support.server_process import TINY_MODEL
from support.tiny_models import TinyLlama, write_tiny_llama

SCRIPTED = ("--executor", "support.repeating:RepeatingExecutor")
CROWDED = ("--num-blocks", "48", "--max-num-seqs", "16")
NARROW = ("--num-blocks", "200", "--max-num-seqs", "4", "--max-waiting", "50")
BLOCKS_OF_8 = ("--block-size", "8", "--admin-api-key", ADMIN_KEY)
PRESSED = (*BLOCKS_OF_8, "--num-blocks", "48", "--max-num-seqs", "4", "--no-enable-prefix-caching")
FLAGS: dict[str, tuple[str, ...]] = {
    "roomy": (*BLOCKS_OF_8, "--num-blocks", "600"),
    "small": (*BLOCKS_OF_8, "--num-blocks", "48", "--max-num-seqs", "8"),
    "cold": ("--block-size", "32", "--num-blocks", "200", "--no-enable-prefix-caching"),
    "chunked": (*BLOCKS_OF_8, "--num-blocks", "64", "--max-num-seqs", "4", "--max-num-batched-tokens", "4"),
    "swapping": (*PRESSED, "--preemption", "swap"),
    "recomputing": (*PRESSED, "--preemption", "recompute"),
    "tight-tier": (*PRESSED, "--preemption", "swap", "--swap-space-bytes", "20K"),
    "caching-and-pressed": (*BLOCKS_OF_8, "--num-blocks", "48", "--max-num-seqs", "4"),
    "skipping": (
        "--executor",
        "support.scripted:SlowExecutor",
        "--block-size",
        "8",
        "--num-blocks",
        "32",
        "--admission",
        "skip",
    ),
    "hanging": ("--executor", "support.scripted:HangingExecutor", "--stall-timeout", "0.4"),
    "refusing": ("--executor", "support.refusing:RefusingExecutor", "--num-blocks", "600"),
    "stalling": ("--num-blocks", "2000", "--max-num-seqs", "400", "--write-timeout", "1"),
    "short": ("--block-size", "4", "--num-blocks", "51", "--admin-api-key", ADMIN_KEY),
}
"""What servers are started with, by the name of the runner."""

ONE_CPU = (
    *(sys.executable, "-c"),
    "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Runs a command with an affinity mask of one CPU."""

QUOTA = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && exec "$@"')
"""Runs a command in the cgroup that the next argument, a folder, describes."""

NO_POOLS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
"""Tells libraries to keep no threads."""

STRICT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}"
)

RUNNABLE = [case for case in CASES if "waits" not in case]


class Runners:
    """Starts the servers that cases ask for, each once."""

    def __init__(self, start_server: Callable[..., Any], tmp: Path) -> None:
        self._start = start_server
        self._tmp = tmp
        self._running: dict[str, HTTPRunner] = {}

    def get(self, name: str) -> HTTPRunner:
        if name in ("own", "no-pools"):
            return HTTPRunner(self._start("--num-blocks", "600", env=NO_POOLS if name == "no-pools" else None))
        if name not in self._running:
            self._running[name] = self._make(name)
        return self._running[name]

    def _make(self, name: str) -> HTTPRunner:
        if name in FLAGS:
            return HTTPRunner(self._start(*FLAGS[name]))
        match name:
            case "windowed":
                folder = write_tiny_llama(self._tmp / "windowed", TinyLlama(vocab_size=512, window=24))
                shutil.copy(TINY_MODEL / "tokenizer.json", folder)
                return HTTPRunner(self._start(*FLAGS["roomy"], model=folder))
            case "tiny":
                return HTTPRunner(self._start("--num-blocks", "600"))
            case "one-cpu":
                return HTTPRunner(self._start("--num-blocks", "200", under=ONE_CPU))
            case "quota":
                return HTTPRunner(self._start("--num-blocks", "200", under=(*QUOTA, self._cgroup())))
            case "crowded":
                return HTTPRunner(self._start(*CROWDED))
            case "narrow":
                return HTTPRunner(self._start(*NARROW))
            case "many-eos":
                return HTTPRunner(self._start("--num-blocks", "200", model=self._many_eos()))
            case "chatting":
                return HTTPRunner(start_repeating_chat(self._start, self._tmp, knows="tools <tool_call>"))
            case "tooling":
                template = self._tmp / "tooling.jinja"
                template.write_text("{{ messages[-1].content }}{# tools <tool_call> #}")
                return HTTPRunner(self._start("--num-blocks", "200", "--chat-template", str(template)))
            case "strict-template":
                template = self._tmp / "strict.jinja"
                template.write_text(STRICT_TEMPLATE)
                return HTTPRunner(self._start("--num-blocks", "200", "--chat-template", str(template)))
            case "scripted":
                path = self._tmp / "tokenizer.json"
                emitted = [token for case in RUNNABLE for token in case["input"].get("emit", [])]
                vocabulary = write_tokenizer(path, emitted)
                return HTTPRunner(self._start(*SCRIPTED, "--tokenizer", str(path)), vocabulary)
            case "scripted-model":
                return HTTPRunner(self._start(*SCRIPTED, model="smollm2-135m"))
        raise AssertionError(name)

    def _cgroup(self) -> str:
        """A folder that allows 1.9 CPUs."""
        folder = self._tmp / "cgroup"
        folder.mkdir()
        (folder / "cpu.max").write_text("190000 100000\n")
        try:
            subprocess.run([*QUOTA, str(folder), "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this system lets nobody stand another folder in for /sys/fs/cgroup")
        return str(folder)

    def _many_eos(self) -> Path:
        folder = self._tmp / "many-eos"
        shutil.copytree(TINY_MODEL, folder)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": scenarios.EOS_IDS}))
        return folder


@pytest.fixture(scope="session")
def runners(start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Runners:
    return Runners(start_server, tmp_path_factory.mktemp("cases"))


def scenario(name: str) -> Callable[..., None]:
    """A scenario by its name."""
    for module in (
        scenarios,
        memory_scenarios,
        core_scenarios,
        chat_scenarios,
        grammar_scenarios,
        resource_scenarios,
    ):
        found: Callable[..., None] | None = getattr(module, name, None)
        if found is not None:
            return found
    raise AssertionError(name)


def _parameter(case: dict[str, Any]) -> Any:
    marks = [pytest.mark.model] if case["runner"] == "scripted-model" else []
    marks += [pytest.mark.full] if case.get("long") else []
    return pytest.param(case, id=case["id"], marks=marks)


@pytest.mark.parametrize("case", [_parameter(case) for case in RUNNABLE])
def test_case(case: dict[str, Any], runners: Runners) -> None:
    play = scenario(case["scenario"])
    if case["runner"] in ("core", "parser"):
        play(case["input"], case["expected"])
        return
    others = [runners.get(case.get("other", "many-eos"))] if "other" in inspect.signature(play).parameters else []
    play(runners.get(case["runner"]), *others, case["input"], case["expected"])


def test_every_case_is_played_or_says_what_it_waits_for() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)
    for case in CASES:
        assert case["title"] and case["kind"]
        assert case.get("waits") or scenario(case["scenario"])
