"""What `make test-models` finds on real weights, and the table of it in docs/models.md.

    python tests/models/figures.py

Each test notes its figures in build/models/real-weights.json; this writes them into the page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.paths import TESTS
from support.real_models import FOLDER

FIGURES = FOLDER / "real-weights.json"
PAGE = TESTS.parent / "docs" / "models.md"
BEGIN, END = "<!-- real weights: begin -->", "<!-- real weights: end -->"
HEAD = (
    "| model | class | format | logits error, AVX | portable | greedy tokens | stored form: logits error | best token"
    " equal | divergence |\n|---|---|---|---|---|---|---|---|---|"
)


def record(name: str, **figures: Any) -> None:
    """Add to what is known of a model."""
    found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    found.setdefault(name, {}).update(figures)
    FOLDER.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")


def row(name: str, found: dict[str, Any]) -> str:
    greedy, stored = "not run", ["", "", ""]
    if "near_ties" in found:
        ties = f", {found['near_ties']} near ties" if found["near_ties"] else ""
        greedy = f"equal: {found['prompts']} prompts x {found['tokens']}{ties}"
    if "stored_form" in found:
        form = found["stored_form"]
        stored = [f"{form['logits_error']:.0e}", f"{form['agreement']:.0%}", f"{form['divergence']:.0e}"]
    errors = [f"{found[key]:.0e}" if key in found else "not run" for key in ("logits_error", "portable_logits_error")]
    return "| " + " | ".join([name, found["architecture"], found["format"], *errors, greedy, *stored]) + " |"


def main() -> None:
    found = json.loads(FIGURES.read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    rows = "\n".join(row(name, figures) for name, figures in sorted(found.items()))
    PAGE.write_text(f"{before}{BEGIN}\n{HEAD}\n{rows}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
