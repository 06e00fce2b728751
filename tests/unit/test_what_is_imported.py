"""What a process holds after an import: seconds of start-up time hide here."""

from __future__ import annotations

import subprocess
import sys

import pytest

import octavo

HEAVY = ("numpy", "torch", "starlette", "uvicorn", "tokenizers", "jinja2", "rich", "huggingface_hub", "msgspec")
HEAVY += ("llguidance",)


def loaded_after(code: str, names: tuple[str, ...]) -> set[str]:
    """Which of `names` are loaded in a fresh interpreter that ran `code`."""
    report = f"import sys; print('loaded:', *(n for n in {names!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_import_octavo_loads_nothing_heavy() -> None:
    assert loaded_after("import octavo", HEAVY) == set()


def test_public_names_are_all_there() -> None:
    assert all(getattr(octavo, name) is not None for name in octavo.__all__)
    assert set(dir(octavo)) == set(octavo.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        octavo.Engine  # noqa: B018


def test_public_names_load_only_what_they_need() -> None:
    assert loaded_after("from octavo import SamplingParams", HEAVY) == {"msgspec"}
    assert loaded_after("from octavo import EngineConfig, OctavoError", HEAVY) == set()


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["bench", "--help"]])
def test_the_overview_needs_no_parser(words: list[str]) -> None:
    code = f"from octavo.cli.main import main; main({words!r})"
    assert loaded_after(code, (*HEAVY, "argparse", "dataclasses", "octavo.config")) == set()


@pytest.mark.parametrize("command", ["serve", "chat", "generate", "doctor"])
def test_a_commands_help_loads_nothing_heavy(command: str) -> None:
    code = f"""
from octavo.cli.main import main
try:
    main([{command!r}, "--help"])
except SystemExit as done:
    assert done.code == 0"""
    assert loaded_after(code, HEAVY) <= {"msgspec"}


def test_the_core_loads_nothing_but_msgspec() -> None:
    code = "import pkgutil, importlib, octavo.core\nfor m in pkgutil.iter_modules(octavo.core.__path__):\n"
    code += "    importlib.import_module('octavo.core.' + m.name)"
    assert loaded_after(code, HEAVY) == {"msgspec"}


def test_a_front_end_loads_no_scheduler() -> None:
    code = "import octavo.server.routes, octavo.server.launch, octavo.engine.async_engine, octavo.engine.process_host"
    assert loaded_after(code, ("octavo.core.engine_core", "octavo.core.scheduler")) == set()


def test_what_begins_an_engines_process_loads_little() -> None:
    assert loaded_after("import octavo.engine.process_host", HEAVY) == {"msgspec"}
