"""docs/figures.md and the pictures it shows."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "figures"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures_page", ROOT / "scripts" / "figures_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_reports_say(page: ModuleType) -> None:
    text = (ROOT / "docs" / "figures.md").read_text()
    assert text == page.render(), "run scripts/figures_page.py"
    for report in page.reports():
        assert f"## {report.title}" in text and not report.is_short
        assert all(f"| {c.what} |" in text for c in report.comparisons)
        missed = [c.what for c in report.comparisons if c.holds is False and not c.reason]
        assert not missed, "what was agreed and not held has a reason"


def test_links_to_sections_lead_somewhere(page: ModuleType) -> None:
    text = (ROOT / "docs" / "figures.md").read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        for line in text.splitlines()
        if line[:3] == "## "
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def test_what_is_committed_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_500_000
