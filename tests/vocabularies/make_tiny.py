"""Train the small tokenizers in tests/data/tokenizers, and write down what other libraries make of random text.

    python tests/vocabularies/make_tiny.py          # the golden of the tokenizers that are there
    python tests/vocabularies/make_tiny.py --train  # new ones

Needs transformers, sentencepiece and tiktoken.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.texts import digest
from vocabularies import tiny
from vocabularies.test_tokenizer_oracles import oracle

BATCHES, PER_BATCH = 20, 50
_RULES = "41\t61\n42\t62\n43\t63\nfb01\t66 69\nff11\t31\n3000\t20\n"
"""A normaliser: from code points to code points."""


def train() -> None:
    import sentencepiece
    import tokenizers

    texts = [path.read_text() for path in sorted((tiny.DATA.parents[2] / "docs").glob("*.md"))]
    tiny.DATA.mkdir(exist_ok=True)
    byte_level = tokenizers.ByteLevelBPETokenizer()
    byte_level.train_from_iterator(texts, vocab_size=800, special_tokens=["<|endoftext|>"], show_progress=False)
    byte_level.save_model(str(tiny.DATA))
    ids = json.loads((tiny.DATA / "vocab.json").read_text())
    order = [token for token in sorted(ids, key=ids.__getitem__) if token != "<|endoftext|>"] + ["<|endoftext|>"]
    (tiny.DATA / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(order)}, ensure_ascii=False))
    with tempfile.TemporaryDirectory() as temporary:
        rules = Path(temporary) / "rules.tsv"
        rules.write_text(_RULES)
        lines = [line for text in texts for line in text.splitlines()]
        common = {"vocab_size": 500, "hard_vocab_limit": False, "user_defined_symbols": ["<sep>", "▁▁"]}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(tiny.DATA / "bpe"), model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, **common,
        )  # fmt: skip
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(tiny.DATA / "unigram"), model_type="unigram",
            normalization_rule_name="identity", **common,
        )  # fmt: skip
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(tiny.DATA / "normalising"), model_type="unigram",
            normalization_rule_tsv=str(rules), **{**common, "vocab_size": 100},
        )  # fmt: skip
    for path in tiny.DATA.glob("*.vocab"):
        path.unlink()


def main() -> None:
    if "--train" in sys.argv:
        train()
    golden: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as where:
        for name in tiny.FILES:
            encode = oracle(name, Path(where))
            batches = [tiny.texts(name, seed, PER_BATCH) for seed in range(BATCHES)]
            golden[name] = [digest([encode(text) for text in texts]) for texts in batches]
    tiny.GOLDEN.write_text(json.dumps({"per_batch": PER_BATCH, "digests": golden}, indent=1) + "\n")


if __name__ == "__main__":
    main()
