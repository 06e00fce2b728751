"""Count the tokens of English-German sentence pairs: how `wmt_newstest2013_llama_lengths.csv.gz` was made.

    pip install sentencepiece
    python scripts/count_wmt_lengths.py wmt_newstest2013_en_de.tsv.gz llama2_tokenizer.model lengths.csv.gz

The pairs are a gzip file of lines with a tab between English and German, below a line of names; the tokenizer is a
SentencePiece model. The English sentence counts as the prompt's own part, the German one as the answer; neither
counts a begin or end token. Only counts are written, in the order of the pairs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from pathlib import Path

import sentencepiece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(args.tokenizer))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["input_tokens", "output_tokens"])
    with gzip.open(args.pairs, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            english, german = line.rstrip("\n").split("\t")
            writer.writerow([len(tokenizer.encode(english)), len(tokenizer.encode(german))])
    # No time stamp inside, so that the same counts are the same file.
    args.out.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
