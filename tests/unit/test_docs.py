"""The documentation is true: commands exist, links lead somewhere, generated pages are current."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import main as cli
from octavo.cli.bench import COMMANDS as BENCH

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def shell_lines() -> list[str]:
    return [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]


@pytest.mark.parametrize("line", shell_lines())
def test_a_shell_line_names_what_exists(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "octavo":
        with pytest.raises(SystemExit) as exit_:
            cli.main([*words[1:], "--help"])
        assert exit_.value.code == 0
        assert "usage: octavo" in capsys.readouterr().out
    elif words[0] == "pip":
        assert words[1:] == ["install", "."] and (ROOT / "pyproject.toml").exists()
    else:
        assert words[0] == "curl", f"teach this test about {words[0]}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_blocks_are_python_and_links_lead_somewhere(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_command_line_page_is_current() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "cli_reference.py"], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs" / "cli.md").read_text() == made, "run `make docs`"
    assert "%(" not in made, "a help text that only argparse fills in"


def test_the_readme_names_every_command_or_points_to_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    commands = [*(name for name in cli.COMMANDS if name != "bench"), *(f"bench {name}" for name in BENCH)]
    assert all(f"## octavo {words}\n" in page for words in commands)


def test_make_help_lists_every_target_a_page_names() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    assert named <= targets | {"help"}


def definitions(source: str) -> set[str]:
    """Dotted names of every class, function and assigned name at the top of a module or of a class."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(source).body, "")
    return found


LINKED = re.compile(r"\[`([^`]+)`\]\(\.\./([^)]+)\)")
NAMED = LINKED.findall((ROOT / "docs" / "life-of-a-request.md").read_text())
BLOCKS = LINKED.findall((ROOT / "docs" / "where-every-block-is.md").read_text())


@pytest.mark.parametrize(("name", "file"), sorted({*NAMED, *BLOCKS}))
def test_a_page_names_functions_that_exist(name: str, file: str) -> None:
    source = (ROOT / file).read_text()
    if file.endswith(".h"):
        assert re.search(rf"^(class|struct) {re.escape(name)}\b", source, re.MULTILINE), f"{file} has no {name}"
    elif file.endswith(".cpp"):
        assert re.search(rf"^[\w:*&<> ]*\b{re.escape(name)}\(", source, re.MULTILINE), f"{file} has no {name}"
    else:
        assert name in definitions(source), f"{file} has no {name}"


def test_the_life_of_a_request_visits_every_room() -> None:
    rooms = {file.split("/")[2] for _, file in NAMED if file.startswith("src/octavo/")}
    assert rooms >= {"cli", "server", "engine", "core", "executor", "worker", "models", "backends", "weights"}
    assert len(NAMED) > 50
