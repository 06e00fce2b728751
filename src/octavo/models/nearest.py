"""Which family that is there is most like one that is not."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_RELATIVES = {
    "gemma": "gemma3 gemma2 gemma llama",
    "phi": "phi3 phi llama",
    "qwen": "qwen3 qwen2",
    "mixtral": "mixtral mistral llama",
    "ministral": "mistral llama",
    "pixtral": "mistral llama",
    "smollm": "smollm3 llama",
    "deepseek": "llama",
    "olmo": "olmo2 llama",
    "granite": "granite llama",
    "falcon": "falcon llama",
    "yi": "llama",
    "internlm": "llama",
    "exaone": "llama",
    "gptj": "gptneox gpt2",
    "gptneo": "gptneox gpt2",
    "pythia": "gptneox",
    "codegen": "gpt2",
    "bloom": "gpt2",
}
"""What a family's name begins with, and the families nearest to it, the nearest first."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """Of the families in `known` the one most like this: a relative, or one of nearly the same name; None where nothing
    is like it. Classes of Hugging Face's or GGUF architectures."""
    plain = {_plain(key): key for key in reversed(list(known))}
    wanted = _plain(name)
    begun = sorted((key for key in plain if wanted.startswith(key) or key.startswith(wanted)), key=len)
    related = [key for start, relatives in _RELATIVES.items() if wanted.startswith(start) for key in relatives.split()]
    same = [wanted] if wanted in plain else []
    found = [
        *same,
        *begun[-1:],
        *(key for key in related if key in plain),
        *difflib.get_close_matches(wanted, plain, n=1),
    ]
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name.lower()
