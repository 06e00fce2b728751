"""The command itself: overview, choosing a command, exit status."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from octavo import __version__
from octavo.cli import main as cli
from octavo.cli.bench import COMMANDS as BENCH
from octavo.errors import ConfigError, EngineDeadError, ModelFileError, RequestError

ALL_COMMANDS = [(name, module) for name, (module, _) in cli.COMMANDS.items() if name != "bench"]
ALL_COMMANDS += [(f"bench {name}", module) for name, (module, _) in BENCH.items()]


@pytest.mark.parametrize(("words", "module"), ALL_COMMANDS)
def test_every_command_is_there(words: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = importlib.import_module(module)
    assert callable(loaded.add_arguments) and callable(loaded.run)
    with pytest.raises(SystemExit) as exit_:
        cli.main([*words.split(), "--help"])
    assert exit_.value.code == 0
    assert f"usage: octavo {words} [flags]" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {__version__}\n"


def test_overview_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in cli.COMMANDS)
    assert cli.main([]) == 2, "no command is a mistake"
    assert cli.main(["bench", "--help"]) == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["serv"], "octavo: error: no such command: serv; did you mean serve?"),
        (["bench", "ofline"], "octavo bench: error: no such command: ofline; did you mean offline?"),
    ],
)
def test_a_mistyped_command_gets_a_guess(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert line in capsys.readouterr().err


def command_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def run(args: argparse.Namespace) -> int:
        raise error

    module = ModuleType("octavo_test_command")
    module.__dict__.update(add_arguments=lambda parser: None, run=run)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "boom", (module.__name__, "fails"))
    return ["boom"]


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("block_size", 3, "a power of two"), 2, "octavo boom: error: block_size = 3: must be"),
        (ModelFileError("m.gguf", "header", "is cut short"), 2, "octavo boom: error: m.gguf: header: is cut short"),
        (RequestError("temperature", -1, "positive"), 2, "octavo boom: error: temperature = -1"),
        (EngineDeadError("the engine is gone"), 1, "octavo boom: error: the engine is gone"),
        (FileNotFoundError(2, "No such file or directory", "p.txt"), 1, "octavo boom: error: "),
        (ZeroDivisionError("division by zero"), 1, "octavo boom: internal error: ZeroDivisionError"),
    ],
)
def test_errors_are_one_line(
    error: Exception, status: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command_raising(error, monkeypatch)
    assert cli.main(words) == status
    shown = capsys.readouterr().err
    assert shown.startswith(line) and shown.count("\n") == 1
    with pytest.raises(type(error)):
        cli.main([*words, "--debug"])


def test_interrupted_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(command_raising(KeyboardInterrupt(), monkeypatch)) == 130


def test_a_reader_that_leaves_is_not_a_traceback() -> None:
    code = (
        "import sys; from octavo.cli.main import main; status = main(['doctor']); sys.stdout.flush(); sys.exit(status)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        error = process.stderr.read().decode()
    assert "Traceback" not in error and "BrokenPipe" not in error


def test_the_package_is_the_command() -> None:
    words = [sys.executable, "-m", "octavo", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"octavo {__version__}\n"
