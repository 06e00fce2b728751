"""Filling the middle: prompts of models that were taught to write what stands between a prefix and a suffix."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.tokenizer import Tokenizer

_PREFIX_FIRST = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek Coder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
)
"""What stands before the prefix, before the suffix, and before the middle."""

_SUFFIX_FIRST = (("[SUFFIX]", "[PREFIX]"),)  # Codestral
"""What stands before the suffix, and before the prefix, which the middle follows."""


@dataclass(frozen=True)
class Infill:
    """How a model's prompts for the middle are put together."""

    before_prefix: int
    before_suffix: int
    before_middle: int | None
    """None where the suffix comes first, and the middle simply goes on after the prefix."""

    def prompt(self, bos_ids: list[int], prefix: list[int], suffix: list[int]) -> list[int]:
        """Token ids of the prompt; `bos_ids` begin every text of this model."""
        first, second = [self.before_prefix, *prefix], [self.before_suffix, *suffix]
        if self.before_middle is None:
            return [*bos_ids, *second, *first]
        return [*bos_ids, *first, *second, self.before_middle]


def find_infill(tokenizer: Tokenizer) -> Infill | None:
    """By the tokens in the model's vocabulary; None where it has none for this."""
    for spellings in _PREFIX_FIRST:
        ids = [tokenizer.id_of(text) for text in spellings]
        if None not in ids:
            return Infill(*ids)  # type: ignore[arg-type]
    for suffix, prefix in _SUFFIX_FIRST:
        before_suffix, before_prefix = tokenizer.id_of(suffix), tokenizer.id_of(prefix)
        if before_suffix is not None and before_prefix is not None:
            return Infill(before_prefix, before_suffix, None)
    return None


def infill_prompt(tokenizer: Tokenizer, prefix: str | list[int], suffix: str) -> list[int] | None:
    """Token ids of a prompt for what stands between `prefix` and `suffix`; None where the model cannot fill in."""
    infill = find_infill(tokenizer)
    if infill is None:
        return None
    bos_ids = [i for i in tokenizer.encode("")[:1] if i == tokenizer.bos_id]
    begin = prefix if isinstance(prefix, list) else tokenizer.encode(prefix, add_special_tokens=False)
    if bos_ids and begin[:1] == bos_ids:
        begin = begin[1:]
    return infill.prompt(bos_ids, begin, tokenizer.encode(suffix, add_special_tokens=False))
