"""Make tests/unit/engine/data/smollm2.json from Hugging Face transformers:

    python tests/support/make_tokenizer_golden.py FOLDER_OF_SMOLLM2 tests/unit/engine/data/smollm2.json

FOLDER holds the tokenizer.json and tokenizer_config.json of HuggingFaceTB/SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import transformers
from texts import digest, random_texts

EXAMPLES = [
    "Hello, world!",
    " a",
    "<|im_end|> a",
    "<|im_start|>  b",
    "\t\ttabs\tand  spaces   ",
    "café",
    "cafe\u0301",
    "👨\u200d👩\u200d👧\u200d👦 family",
    "世界 你好",
    "각 가\u1100\u1161",
    "123 4567 ٣٤",
    "don't I'LL we've",
    "\n\n\nlines\r\n",
    "def f(x):\n    return x ** 2\n",
    " " * 200,
    "\x00\x7f\ufeff",
]
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi  \n"}]},
    {
        "messages": [
            {"role": "user", "content": "What is 2 + 2?"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "世界 😀?"},
        ]
    },
    {"messages": [{"role": "user", "content": ""}], "add_generation_prompt": False},
    {"messages": [{"role": "tool", "content": '{"a": 1}'}, {"role": "user", "content": "{{ x }}"}]},
]
BATCHES, PER_BATCH = 40, 100


def main(folder: str, target: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    chats = []
    for chat in CHATS:
        generate = chat.get("add_generation_prompt", True)
        text = tokenizer.apply_chat_template(chat["messages"], add_generation_prompt=generate, tokenize=False)
        chats.append({"add_generation_prompt": True, **chat, "text": text, "ids": ids(text)})
    golden = {
        "made_by": f"transformers {transformers.__version__}",
        "examples": [{"text": text, "ids": ids(text), "decoded": tokenizer.decode(ids(text))} for text in EXAMPLES],
        "per_batch": PER_BATCH,
        "digests": [digest([ids(text) for text in random_texts(seed, PER_BATCH)]) for seed in range(BATCHES)],
        "chats": chats,
    }
    Path(target).write_text(json.dumps(golden, ensure_ascii=True, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
