"""Real checkpoints, and what they are asked."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import msgspec

from golden import cases
from octavo.engine.chat_template import ChatTemplate
from octavo.engine.tokenizer import Tokenizer
from octavo.weights.sources import open_checkpoint, resolve
from support.llama2c import convert
from support.paths import SHARED, TINYSTORIES
from support.real_models import REAL_MODELS, real_model

SMOLLM2 = "smollm2-135m"
AIDREAMS = "aidreams-llama-233k"
NUM_TOKENS = 32
"""Generated per prompt."""
NUM_PROMPTS = int(os.environ.get("OCTAVO_PROMPTS", "5"))
"""The long ones come last."""


class RealCase(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a real model."""

    name: str
    num_tokens: int = NUM_TOKENS
    block_size: int = 16
    own_prompts: tuple[tuple[int, ...], ...] = ()
    """Token ids, for models that know too few words for the texts below."""
    large: bool = False
    """Takes gigabytes and minutes; with OCTAVO_LARGE=1 only."""

    @property
    def missing(self) -> str:
        """Why it cannot be had here, if so."""
        if self.large and os.environ.get("OCTAVO_LARGE") != "1":
            return "large: set OCTAVO_LARGE=1"
        if self.name == AIDREAMS and not _aidreams().exists():
            return f"needs {_aidreams()}; OCTAVO_TEST_DATA names the folder of `models`"
        return ""

    def path(self, scratch: Path) -> Path:
        """A GGUF file, or a folder. `scratch` is for what has to be converted."""
        if self.name == TINYSTORIES.name:
            return TINYSTORIES
        if self.name == AIDREAMS:
            return convert(_aidreams(), scratch / self.name)
        return real_model(self.name) if self.name in REAL_MODELS else resolve(self.name).path

    def facts(self, path: Path) -> dict[str, str]:
        checkpoint = open_checkpoint(resolve(str(path)))
        dtypes = Counter(checkpoint.info(name).dtype for name in checkpoint.names())
        checkpoint.close()
        kinds = ", ".join(kind for kind, _ in dtypes.most_common() if path.is_dir() or kind != "f32")
        found = {"architecture": checkpoint.config["architectures"][0]}
        return found | {"format": f"{'safetensors' if path.is_dir() else 'GGUF'} ({kinds})"}

    def prompts(self, path: Path) -> list[list[int]]:
        """Short, code, chat where there is a template, some 750 tokens, some 300 tokens."""
        if self.own_prompts:
            return [list(prompt) for prompt in self.own_prompts]
        checkpoint = open_checkpoint(resolve(str(path)))
        files = checkpoint.tokenizer_files()
        checkpoint.close()
        tokenizer = Tokenizer.load(files)
        prompts = [tokenizer.encode("The capital of France is"), tokenizer.encode("def fibonacci(n):\n    ")]
        if files.chat_template is not None:
            variables = {"bos_token": files.bos_token, "eos_token": files.eos_token}
            template = ChatTemplate(files.chat_template, variables)
            text = template.render([{"role": "user", "content": "Say in two sentences why the sky is blue."}])
            prompts.append(tokenizer.encode(text, add_special_tokens=False))
        texts = _texts()
        prompts += [tokenizer.encode("\n".join(texts[:10])), tokenizer.encode("\n".join(texts[10:14]))]
        return prompts[:NUM_PROMPTS]


def _aidreams() -> Path:
    return SHARED / "models" / AIDREAMS / "model.bin"


def _texts() -> list[str]:
    """Questions and code, which lie here as the default model's tokens."""
    checkpoint = open_checkpoint(resolve(SMOLLM2))
    tokenizer = Tokenizer.load(checkpoint.tokenizer_files())
    checkpoint.close()
    prompts = json.loads((cases.HERE / "prompts.json").read_text())["prompts"]
    return [tokenizer.decode(prompt["token_ids"]) for prompt in prompts]


STORIES_PROMPTS = tuple(tuple(prompt) for prompt in cases.STORIES_PROMPTS)
REAL_CASES = (
    RealCase(name=TINYSTORIES.name, own_prompts=STORIES_PROMPTS, block_size=8),
    RealCase(name=AIDREAMS, own_prompts=STORIES_PROMPTS, block_size=8, num_tokens=28),
    RealCase(name=SMOLLM2),
    RealCase(name="gemma-3-270m"),
    RealCase(name="qwen2.5-coder-0.5b"),
    RealCase(name="qwen2.5-coder-1.5b", num_tokens=16, large=True),
)
