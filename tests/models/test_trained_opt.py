"""The paper's family with weights that have learnt something: a small OPT, trained on tinyshakespeare and served."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import octavo._native as _native
from golden import compare
from models.figures import record
from octavo import LLM, SamplingParams
from support.core_runs import run
from support.paths import SHARED, TESTS
from support.real_models import FOLDER

pytestmark = [pytest.mark.models, pytest.mark.timeout(3600)]
PATHS = _native.supported_paths()
NAME = "opt-shakespeare"
TEXT = SHARED / "prompts" / "tinyshakespeare.txt.gz"
VOCAB, MERGES = (SHARED / "tokenizers" / f"opt_gpt2-{kind}.gz" for kind in ("vocab.json", "merges.txt"))
PROMPTS = (
    "KING RICHARD III:\n",
    "To be, or",
    "First Citizen:\nWe are accounted poor citizens, the patricians good.\n" * 12,
)
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def trained() -> Path:
    """Trained once, in a few minutes; delete the folder to train anew."""
    missing = [path for path in (TEXT, VOCAB, MERGES) if not path.exists()]
    if missing:
        pytest.skip(f"needs {missing[0]}; OCTAVO_TEST_DATA names the folder that `prompts` and `tokenizers` are in")
    folder = FOLDER / NAME
    if not (folder / "held_out.json").exists():
        script = TESTS.parent / "scripts" / "train_opt.py"
        files = ["--text", str(TEXT), "--vocab", str(VOCAB), "--merges", str(MERGES)]
        subprocess.run([sys.executable, str(script), str(folder), *files], check=True)
    return folder


@pytest.fixture(scope="module")
def prompts(trained: Path) -> list[list[int]]:
    """By the tokenizers library alone: `</s>`, then GPT-2's pieces under OPT's ids."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(str(trained / "vocab.json"), str(trained / "merges.txt"))
    return [[2, *tokenizer.encode(prompt).ids] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(trained: Path, prompts: list[list[int]]) -> list[compare.Expectation]:
    from models.oracle import expectations

    return expectations(trained, prompts, NUM_TOKENS)


def test_it_has_learnt(trained: Path) -> None:
    """It guesses unseen text better than the frequencies of tokens do; chance would be the size of the vocabulary."""
    found = json.loads((trained / "held_out.json").read_text())
    record(NAME, architecture="OPTForCausalLM", format="safetensors (f32)", **found)
    assert found["perplexity"] < found["perplexity_by_frequency"]


def test_served_as_text(trained: Path, prompts: list[list[int]], expected: list[compare.Expectation]) -> None:
    """From vocab.json and merges.txt, with `</s>` in front, to transformers' tokens."""
    with LLM(str(trained), dtype="float32", max_model_len=512) as llm:
        outputs = llm.generate(list(PROMPTS), SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True))
        assert [output.prompt_token_ids for output in outputs] == prompts
        for output, expectation in zip(outputs, expected, strict=True):
            assert output.outputs[0].text == llm.tokenizer.decode(list(output.outputs[0].token_ids))
            answers: Any = {(0, 0): output.outputs[0]}
            compare.near_ties(answers, [expectation])


@pytest.mark.parametrize("isa", PATHS)
def test_logits(isa: str, trained: Path, prompts: list[list[int]], expected: list[compare.Expectation]) -> None:
    worst = compare.worst_logits(trained, prompts, expected, isa=isa)
    record(NAME, **{"portable_logits_error" if isa == "portable" else "logits_error": worst})
    assert worst < compare.LOGITS_TOLERANCE


@pytest.mark.parametrize("isa", PATHS)
def test_chunked_and_preempted(
    isa: str, trained: Path, prompts: list[list[int]], expected: list[compare.Expectation]
) -> None:
    longest = -(-(max(map(len, prompts)) + NUM_TOKENS) // 16)
    settings = {"dtype": "float32", "isa": isa, "block_size": 16, "num_blocks": 1 + longest + 2, "max_num_seqs": 3}
    requests = compare.greedy_requests(prompts, NUM_TOKENS)
    answers, seen = run(trained, requests, max_num_batched_tokens=32, max_model_len=16 * longest, **settings)
    assert seen.stats is not None
    assert seen.num_chunked > 0 and seen.stats.num_preemptions > 0
    ties = compare.near_ties(answers, expected)
    record(NAME, prompts=len(prompts), tokens=NUM_TOKENS, near_ties=ties)
