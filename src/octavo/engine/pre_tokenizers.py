"""How byte-level BPE tokenizers cut a text into words before they merge bytes, by llama.cpp's names for them.

A wrong pattern gives wrong tokens without any error, so a name that is not in the table is refused. Patterns are those
of the models' own tokenizer.json files, as far as those and llama.cpp's agree.
"""

from __future__ import annotations

import msgspec

from octavo.engine.tokenizer_json import Part, byte_level, pre_tokenizers, split
from octavo.errors import UnsupportedModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Ends of lines; spaces, the last of which belongs to the next word."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """Contractions; a run of letters with the sign before it; digits; other signs; ends of lines; spaces."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}|{signs}{_ENDS}"


def _cased_words(digits: str, ending: str) -> str:
    """Words that also end where small letters are followed by a capital."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{start}{upper}*{lower}+{ending}|{start}{upper}+{lower}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_ENDS}"


LLAMA3 = _words(r"\p{N}{1,3}")
QWEN2 = _words(r"\p{N}")
QWEN35 = _words(r"\p{N}", r"[\p{L}\p{M}]", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
SEED_CODER = _words(r"\p{N}", signs=r" ?[^\s\p{L}\p{N}\r\n]+")
TEKKEN = _cased_words(r"\p{N}", "")
GPT4O = _cased_words(r"\p{N}{1,3}", _CONTRACTIONS + "?")
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _ENDS,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
FALCON = (r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEFAULT = (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
"""What llama.cpp does for "default"."""


class PreTokenizer(msgspec.Struct, frozen=True):
    """A way to cut text."""

    parts: Part | None
    nfc: bool = False
    """Whether letters and their accents are joined first."""
    ignore_merges: bool = False
    """Whether a word that is a token is taken as it is."""


def splits(*patterns: str) -> Part:
    """Cut by each pattern in turn, and write what remains as bytes."""
    cut = pre_tokenizers(*map(split, patterns), byte_level(use_regex=False))
    assert cut is not None
    return cut


_DIGITS: Part = {"type": "Digits", "individual_digits": True}
_BY_NAME: dict[str, PreTokenizer] = {
    "default": PreTokenizer(splits(*_DEFAULT)),
    "gpt-2 mpt olmo jais phi-2 gigachat a.x-4.0 mellum exaone4 trillion granite-docling": PreTokenizer(
        byte_level(use_regex=True)
    ),
    "smollm starcoder refact command-r codeshell exaone minerva-7b": PreTokenizer(
        pre_tokenizers(_DIGITS, byte_level(use_regex=True))
    ),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 midm-2.0 lfm2": PreTokenizer(splits(LLAMA3), ignore_merges=True),
    "dbrx smaug-bpe glm4 chatglm-bpe": PreTokenizer(splits(LLAMA3)),
    "qwen2 megrez": PreTokenizer(splits(QWEN2), nfc=True),
    "deepseek-r1-qwen kormo hunyuan stablelm2 grok-2 solar-open": PreTokenizer(splits(QWEN2)),
    "qwen35": PreTokenizer(splits(QWEN35), nfc=True),
    "seed-coder": PreTokenizer(splits(SEED_CODER)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(splits(BAILING)),
    "tekken": PreTokenizer(splits(TEKKEN), ignore_merges=True),
    "gpt-4o llama4 kanana2 minimax-m2": PreTokenizer(splits(GPT4O)),
    "deepseek-v3 hunyuan-dense joyai-llm": PreTokenizer(splits(*DEEPSEEK3)),
    "deepseek-coder": PreTokenizer(splits(*DEEPSEEK_CODER)),
    "falcon": PreTokenizer(splits(*FALCON)),
    "bloom poro-chat gpt3-finnish": PreTokenizer(splits(BLOOM)),
    "viking": PreTokenizer(splits(BLOOM, r"\p{N}")),
}
PRE_TOKENIZERS = {name: cut for names, cut in _BY_NAME.items() for name in names.split()}


def pre_tokenizer(name: str | None, file: str) -> PreTokenizer:
    """The one of that name.

    Raises:
        UnsupportedModelError: Naming it, and those that are known.
    """
    if name is None or name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{file}: pre-tokenizer {'(none named)' if name is None else repr(name[:40])}: "
            f"supported are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]
