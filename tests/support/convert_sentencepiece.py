"""Rewrite a SentencePiece BPE model as a tokenizer.json: python convert_sentencepiece.py tok512.model tokenizer.json

How tests/data/tinystories-llama-280k/tokenizer.json was made. Spaces are kept as they are, as Hugging Face's Llama
tokenizers keep them, so that text survives the round trip; SentencePiece itself would drop repeated ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from octavo.engine.tokenizer_sources import read_source
from octavo.weights.checkpoint import TokenizerFiles


def convert(model: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(read_source(TokenizerFiles(vocabulary=model, model_type="llama")).json)
    return content


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(convert(Path(sys.argv[1])), ensure_ascii=False, separators=(",", ":")))
