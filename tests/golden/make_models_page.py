"""Write the table in docs/models.md: what was measured on the tiny model of each family and variant.

python tests/golden/make_models_page.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import cases, compare
from golden.gguf_cases import PAIRS
from support.core_runs import run
from support.tiny_models import write_tiny_llama

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
UNVERIFIED = "unverified on real weights"
VERIFIED = {"opt": "verified: a small one, trained for it", "gemma3": "verified: Gemma 3 270M"}
"""Variants that `tests/models` has a real model of. Llama, and Qwen2 without windows, are not among them."""
HEAD = (
    "| tiny model | class | logits error | greedy tokens equal | the same from GGUF | real weights |\n"
    "|---|---|---|---|---|---|"
)
GGUF = {name: arch for arch, name in PAIRS}


def row(name: str, root: Path) -> str:
    model, expected = cases.FAMILIES[name], compare.load(name)
    folder, prompts = write_tiny_llama(root / name, model), cases.tiny_prompts(model)
    settings: dict[str, Any] = {"backend": "reference", "max_model_len": model.context or 128}
    settings["allow_long_max_model_len"] = True
    error = compare.worst_logits(folder, prompts, expected, **settings)
    requests = compare.greedy_requests(prompts, cases.FAMILY_TOKENS)
    answers, _ = run(folder, requests, dtype="float32", num_blocks=80, **settings)
    equal = [answers[i, 0].token_ids == e.tokens for i, e in enumerate(expected)].count(True)
    counts = f"{equal} of {len(expected)} prompts"
    gguf = f"`{GGUF[name]}`" if name in GGUF else ""
    real = VERIFIED.get(name, UNVERIFIED)
    return f"| `{name}` | {model.architecture} | {error:.0e} | {counts} | {gguf} | {real} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        rows = [row(name, Path(root)) for name in cases.FAMILIES]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{HEAD}\n" + "\n".join(rows) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
