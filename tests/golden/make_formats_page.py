"""Write the tables of families and formats in docs/models.md, from what is measured now (five to fifteen minutes).

python tests/golden/make_formats_page.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import cases, compare
from golden.format_cases import BLOCKS, FLOATS, PACKED, ROWS, Found, absent, measure, write
from golden.make_models_page import PAGE, UNVERIFIED, VERIFIED
from support.core_runs import run
from support.quantized import CASES
from support.tiny_models import TinyLlama, write_tiny_llama

BEGIN, END = "<!-- formats: begin -->", "<!-- formats: end -->"
REAL_BEGIN, REAL_END = "<!-- real weights: begin -->", "<!-- real weights: end -->"
PLAIN_BLOCKS = ("F32", "F16", "BF16")
KEPT_BLOCKS = tuple(column for column in BLOCKS if column not in PLAIN_BLOCKS)

Cell = str | Found
Reasons = dict[str, int]
"""Why cells are empty, by number."""


def float32_cell(row: str) -> str:
    """The folder form against what transformers answered."""
    name = ROWS[row].golden
    model, expected = (cases.TINY | cases.FAMILIES)[name], compare.load(name)
    prompts = cases.tiny_prompts(model)
    num_tokens = cases.TINY_TOKENS if isinstance(model, TinyLlama) else cases.FAMILY_TOKENS
    settings: dict[str, Any] = {"backend": "reference"}
    with tempfile.TemporaryDirectory() as root:
        folder = write_tiny_llama(Path(root), model)
        error = compare.worst_logits(folder, prompts, expected, **settings)
        requests = compare.greedy_requests(prompts, num_tokens)
        answers, _ = run(folder, requests, dtype="float32", num_blocks=80, **settings)
    pairs = [zip(answers[i, 0].token_ids, e.tokens, strict=True) for i, e in enumerate(expected)]
    same = [found == wanted for pair in pairs for found, wanted in pair]
    return f"{error:.0e}, {sum(same) / len(same):.0%}"


def found(row: str, column: str) -> Found | None:
    if absent(row, column):
        return None
    with tempfile.TemporaryDirectory() as root:
        return measure(*write(Path(root) / "model", row, column))


def cell(row: str, column: str, seen: Found | None, reasons: Reasons) -> str:
    if seen is None:
        number = reasons.setdefault(absent(row, column), len(reasons) + 1)
        return f"[{number}]"
    exact = "" if seen.exact == 0 and seen.same_weights else f"expanded {seen.exact:.0e}, "
    return f"{exact}{seen.served:.0e}, {seen.agreement:.0%}" if seen.served else f"{exact}0, {seen.agreement:.0%}"


def real_weights(page: str) -> dict[str, list[str]]:
    """The formats in the page's table of real weights, by class."""
    by_class: dict[str, list[str]] = {}
    for line in page.partition(REAL_BEGIN)[2].partition(REAL_END)[0].splitlines()[3:]:
        _, _, architecture, stored, _, _, greedy, *_ = (part.strip() for part in line.split("|"))
        if greedy.startswith("equal"):
            by_class.setdefault(architecture, []).append(stored)
    return by_class


def verified(row: str, formats: list[str]) -> str:
    return f"verified: {', '.join(dict.fromkeys(formats))}" if formats else VERIFIED.get(row, UNVERIFIED)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(page: str) -> str:
    seen: dict[tuple[str, str], Found | None] = {}
    for row in ROWS:
        print(row, flush=True)
        seen |= {(row, column): found(row, column) for column in (*FLOATS, *BLOCKS, *PACKED)}
    real, reasons = real_weights(page), Reasons()

    def cells(row: str, columns: Iterable[str]) -> list[str]:
        return [cell(row, column, seen[row, column], reasons) for column in columns]

    classes = {row: case.model.architecture for row, case in ROWS.items()}
    first = table(
        ["family", "class", "float32", *FLOATS, *(f"GGUF {c}" for c in PLAIN_BLOCKS), "real weights"],
        [
            [
                f"`{row}`",
                name,
                float32_cell(row),
                *cells(row, (*FLOATS, *PLAIN_BLOCKS)),
                verified(row, real.get(name, [])),
            ]
            for row, name in classes.items()
        ],
    )
    kinds = {c: c if len(set(BLOCKS[c])) == 1 else f"{c} ({', '.join(BLOCKS[c])})" for c in KEPT_BLOCKS}
    second = table(["family", *kinds.values()], [[f"`{row}`", *cells(row, KEPT_BLOCKS)] for row in ROWS])
    third = table(["family", *PACKED], [[f"`{row}`", *cells(row, PACKED)] for row in ROWS])
    third += "\n\n" + "; ".join(f"{column}: {CASES[case].kind}" for column, case in PACKED.items()) + "."
    measured = [each for each in seen.values() if each is not None]
    exact = sum(each.exact == 0 and each.same_weights for each in measured)
    summary = (
        f"Expanded to float32, {exact} of {len(measured)} cells have the logits of the right answer to the last bit."
    )
    notes = "\n".join(f"* [{number}] {why}." for why, number in reasons.items())
    parts = {"Floats": first, "Quantised GGUF": second, "Quantised safetensors": third}
    body = "\n\n".join(f"### {title}\n\n{each}" for title, each in parts.items())
    return f"{summary}\n\n{body}\n\nCells without figures:\n\n{notes}"


def main() -> None:
    page = PAGE.read_text()
    made = tables(page)
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
