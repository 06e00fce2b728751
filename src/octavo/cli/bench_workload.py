"""Workloads: what a benchmark sends. Made here from a seed, or read from JSONL.

| name    | requests | input tokens                        | output tokens                | in flight |
|---------|----------|-------------------------------------|------------------------------|-----------|
| chat    | 64       | log-normal, mean 160, 4 to 1024     | log-normal, mean 150, 4-512  | 16        |
| prefix  | 64       | 544 each, the first 512 the same    | 64 each                      | 16        |
| nsample | 16, n=4  | 96 each                             | 64 for each of the 4         | 4         |
| single  | 1        | 128                                 | 256                          | 1         |
| long    | 4        | 4096 each                           | 64 each                      | 4         |

Prompts are rows of whole words that survive decoding and encoding, so that every engine with the same tokenizer
counts the same tokens.
"""

from __future__ import annotations

import math
import random
import re
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from octavo.errors import ConfigError

CONCURRENCY = {"chat": 16, "prefix": 16, "nsample": 4, "single": 1, "long": 4}
"""Names of the workloads made here, with the requests each keeps in flight unless told otherwise."""

_WORD = re.compile(rb" [a-z]{3,}")
"""The bytes of a token that is a space and a lower-case word."""

_NUM_WORDS = 8000
_SYSTEM_PROMPT_TOKENS = 512
_CHAT_LENGTHS_SEED = 1001
"""Fixes chat's lengths: with 64 requests 10,236 input and 9,575 output tokens in all."""


class WordTokenizer(Protocol):
    """What making prompts needs of a tokenizer; `engine.tokenizer.Tokenizer` has it."""

    vocab_size: int

    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str: ...


class Item(msgspec.Struct, kw_only=True, frozen=True):
    """One request of a workload; a line of a JSONL file has these fields."""

    prompt: str
    output_token_count: int
    prompt_token_count: int = 0
    """0 when unknown; reports then rely on the server's count."""
    n: int = 1
    temperature: float = 0.0
    id: str = ""
    workload: str = ""


def read_jsonl(path: str) -> list[Item]:
    """A workload file, one JSON object a line.

    Raises:
        ConfigError: With the line number, for a line that is not one; or when there is none.
    """
    items = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            items.append(msgspec.json.decode(line, type=Item))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                "dataset_path", f"line {number} of {path}", f"a workload item per line ({error})"
            ) from None
    if not items:
        raise ConfigError("dataset_path", path, "a file with at least one line")
    return items


class _Words:
    """Random text of an exact number of tokens."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.tokenizer = tokenizer
        words = (i for i in range(tokenizer.vocab_size) if _WORD.fullmatch(tokenizer.token_bytes(i)))
        self.ids = [i for i in islice(words, _NUM_WORDS) if self.encode(tokenizer.decode([i])) == [i]]
        if len(self.ids) < 2:
            raise ConfigError("tokenizer", "this model's", "one with whole-word tokens; give --dataset-path instead")

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, rng: random.Random, num_tokens: int) -> str:
        """Words drawn log-uniformly over their rank, so that common ones come often, as in real text."""
        for _ in range(50):
            ids = [self.ids[int(len(self.ids) ** rng.random()) - 1] for _ in range(num_tokens)]
            text = self.tokenizer.decode(ids)
            if self.encode(text) == ids:
                return text
        raise ConfigError("tokenizer", "this model's", "one whose words survive decoding; give --dataset-path instead")


def lengths(rng: random.Random, count: int, mean: float, sigma: float, low: int, high: int) -> list[int]:
    """Log-normal lengths cut to `low..high`, scaled until their mean after the cut is within 0.5 of `mean`."""
    mu = math.log(mean) - sigma * sigma / 2
    raw = [rng.lognormvariate(mu, sigma) for _ in range(count)]
    for _ in range(30):
        cut = [min(high, max(low, round(x))) for x in raw]
        reached = sum(cut) / count
        if abs(reached - mean) < 0.5:
            break
        raw = [x * mean / reached for x in raw]
    return cut


def synthetic(name: str, tokenizer: WordTokenizer, seed: int = 0, count: int | None = None) -> list[Item]:
    """A workload of the table above. The seed changes the words and never the lengths; `count` the number of requests.

    Raises:
        ConfigError: For a name that is not in the table, or a tokenizer without words.
    """
    if name not in CONCURRENCY:
        raise ConfigError("dataset_name", name, "one of " + ", ".join(CONCURRENCY))
    words = _Words(tokenizer)
    rng = random.Random(f"{name} {seed}")
    make = {"chat": _chat, "prefix": _prefix, "nsample": _nsample, "single": _single, "long": _long}[name]
    return [
        msgspec.structs.replace(item, id=f"{name}-{i}", workload=name) for i, item in enumerate(make(words, rng, count))
    ]


def _item(words: _Words, rng: random.Random, num_input: int, num_output: int, head: str = "", **rest: float) -> Item:
    prompt = head + words.text(rng, num_input)
    num_tokens = len(words.encode(prompt))
    return Item(
        prompt=prompt,
        prompt_token_count=num_tokens,
        output_token_count=num_output,
        n=int(rest.get("n", 1)),
        temperature=rest.get("temperature", 0.0),
    )


def _chat(words: _Words, rng: random.Random, count: int | None) -> list[Item]:
    return [_item(words, rng, i, o) for i, o in chat_lengths(count or 64)]


def chat_lengths(count: int) -> list[tuple[int, int]]:
    """(input, output) tokens of the requests of chat."""
    shape = random.Random(_CHAT_LENGTHS_SEED)
    inputs = lengths(shape, count, 160, 1.0, 4, 1024)
    outputs = lengths(shape, count, 150, 0.8, 4, 512)
    return list(zip(inputs, outputs, strict=True))


def _prefix(words: _Words, rng: random.Random, count: int | None) -> list[Item]:
    head = words.text(rng, _SYSTEM_PROMPT_TOKENS)
    return [_item(words, rng, 32, 64, head) for _ in range(count or 64)]


def _nsample(words: _Words, rng: random.Random, count: int | None) -> list[Item]:
    return [_item(words, rng, 96, 64, n=4, temperature=1.0) for _ in range(count or 16)]


def _single(words: _Words, rng: random.Random, count: int | None) -> list[Item]:
    return [_item(words, rng, 128, 256) for _ in range(count or 1)]


def _long(words: _Words, rng: random.Random, count: int | None) -> list[Item]:
    return [_item(words, rng, 4096, 64) for _ in range(count or 4)]
