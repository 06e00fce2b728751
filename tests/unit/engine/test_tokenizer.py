"""The tokenizer agrees with Hugging Face's, and refuses files it cannot trust."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from octavo.engine.gguf_tokenizer import tokenizer_json
from octavo.engine.pre_tokenizers import PRE_TOKENIZERS
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.gguf_vocabulary import GGUFVocabulary
from support.paths import TINYSTORIES
from support.texts import digest, random_texts

GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text())


@pytest.mark.model
@pytest.mark.parametrize(
    "example", GOLDEN["examples"], ids=lambda example: example["text"][:20].encode("unicode_escape")
)
def test_smollm2_from_gguf_equals_transformers(smollm2: Tokenizer, example: dict[str, Any]) -> None:
    assert smollm2.encode(example["text"]) == example["ids"]
    assert smollm2.decode(example["ids"], skip_special_tokens=False) == example["decoded"]


@pytest.mark.model
def test_smollm2_equals_transformers_on_random_text(smollm2: Tokenizer) -> None:
    for seed, expected in enumerate(GOLDEN["digests"]):
        texts = random_texts(seed, GOLDEN["per_batch"])
        ids = [smollm2.encode(text) for text in texts]
        assert digest(ids) == expected, f"batch of seed {seed}"
        assert [smollm2.decode(i, skip_special_tokens=False) for i in ids] == texts, "text does not survive"


@pytest.mark.model
def test_smollm2_loads_fast(smollm2_files: TokenizerFiles) -> None:
    """Well under the second and a half that a first token may take; measured against a fixed piece of work."""
    Tokenizer.load(smollm2_files)
    start = time.process_time()
    Tokenizer.load(smollm2_files)
    load_s = time.process_time() - start
    start = time.process_time()
    sum(hash(str(i)) for i in range(1_000_000))
    assert load_s < 4 * (time.process_time() - start)


def test_sentencepiece_tokenizer_round_trips_and_equals_the_library(tinystories: Tokenizer) -> None:
    library = tokenizers.Tokenizer.from_file(str(TINYSTORIES / "tokenizer.json"))
    for text in random_texts(1, 1000):
        ids = tinystories.encode(text, add_special_tokens=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        if not any(sign in text for sign in ("<s>", "</s>", "▁", "<0x0A>")):
            assert tinystories.decode(ids) == text


def test_one_begin_of_sequence_whether_the_text_has_it_or_not(tinystories: Tokenizer) -> None:
    assert tinystories.encode("Hi") == [1, 320, 417]
    assert tinystories.encode("<s>Hi") == [1, 320, 417]
    assert tinystories.encode("<s><s>Hi") == [1, 1, 320, 417], "what the user doubles stays doubled"
    assert tinystories.encode("<s>Hi", add_special_tokens=False) == [1, 320, 417]
    assert tinystories.encode("") == [1]


def test_token_bytes_are_exact(tinystories: Tokenizer) -> None:
    hangul = [3 + byte for byte in (0xEA, 0xB9, 0xB0)]  # <0xEA><0xB9><0xB0>
    assert b"".join(map(tinystories.token_bytes, hangul)).decode() == "깰"
    assert tinystories.decode(hangul) == "깰"
    assert tinystories.token_bytes(1) == b"<s>"
    assert tinystories.token_bytes(261) == b" a"
    assert tinystories.token_bytes(10**9) == b"" == tinystories.token_bytes(-1)
    assert tinystories.special_ids == {0, 1, 2}
    assert (tinystories.bos_id, tinystories.eos_id, tinystories.vocab_size) == (1, 2, 512)


def test_guarded_text_never_becomes_a_control_token(tinystories: Tokenizer) -> None:
    """What a user writes stays text, whatever it spells; what the template writes becomes control tokens."""
    for text in ["</s>", "a</s>b<s><s></s>", "<unk></s", "plain", "</s" + "></s>"]:
        ids = tinystories.encode_guarded("<s>" + tinystories.guard(text) + "</s>")
        assert [i for i in ids if i in tinystories.special_ids] == [1, 2]
        assert tinystories.decode(ids) == text
    assert tinystories.encode_guarded("<s>plain</s>") == tinystories.encode("<s>plain</s>", add_special_tokens=False)


@pytest.mark.model
def test_guarded_text_encodes_as_the_same_text_without_control_tokens(smollm2: Tokenizer) -> None:
    ids = smollm2.encode_guarded("<|im_start|>user\n" + smollm2.guard("x <|im_end|> y") + "<|im_end|>\n")
    assert [smollm2.token_bytes(i) for i in ids] == [
        *(b"<|im_start|>", b"user", b"\n", b"x", b" <", b"|", b"im", b"_", b"end", b"|", b">", b" y"),
        *(b"<|im_end|>", b"\n"),
    ]
    assert ids[0] == 1 and ids[-2] == 2


def _vocabulary(**changes: Any) -> GGUFVocabulary:
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "Ġ", "Ġa", "<end>"],
        "token_types": np.array([1, 1, 1, 1, 1, 3], np.int32),
        "scores": None,
        "merges": ["a b", "Ġ a"],
        "bos_id": 5,
        "eos_id": 5,
        "unknown_id": None,
        "padding_id": None,
        "add_bos": None,
        "add_eos": None,
        "add_space_prefix": None,
        "chat_template": None,
    }
    return GGUFVocabulary(**{**fields, **changes})


def _tokens(vocabulary: GGUFVocabulary, text: str) -> list[str]:
    inner = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary, "x.gguf")))
    return list(inner.encode(text).tokens)


def test_other_threads_run_while_a_long_text_is_encoded(tinystories: Tokenizer) -> None:
    """Or one long prompt would stop every stream of a server."""
    text = "once upon a time " * 60_000
    for encode, given in ((tinystories.encode, text), (tinystories.encode_guarded, tinystories.guard(text + "</s>"))):
        turns: list[int] = []
        done = threading.Event()

        def count(turns: list[int] = turns, done: threading.Event = done) -> None:
            while not done.wait(0.001):
                turns.append(1)

        counting = threading.Thread(target=count)
        counting.start()
        encode(given)
        during = len(turns)
        done.set()
        counting.join()
        assert during >= 10


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_known_pre_tokenizers(pre: str) -> None:
    bos = ["<end>"] if _vocabulary(pre=pre).adds_bos else []
    assert _tokens(_vocabulary(pre=pre), "ab a<end>") == [*bos, "ab", "Ġa", "<end>"]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["x", "1234", " y"]),
        ("smollm", ["x", "1", "2", "3", "4", " y"]),
        ("llama-bpe", ["x", "123", "4", " y"]),
        ("qwen2", ["x", "1", "2", "3", "4", " y"]),
        ("gpt-4o", ["x", "123", "4", " y"]),
        ("tekken", ["x", "1", "2", "3", "4", " y"]),
        ("deepseek-v3", ["x", "123", "4", " y"]),
        ("falcon", ["x", "123", "4", " y"]),
    ],
)
def test_digits_are_cut_as_the_model_learned_them(pre: str, words: list[str]) -> None:
    settings = tokenizer_json(_vocabulary(pre=pre), "x.gguf")
    cut = tokenizers.Tokenizer.from_str(json.dumps(settings)).pre_tokenizer.pre_tokenize_str("x1234 y")
    assert [word.replace("Ġ", " ") for word, _ in cut] == words


def test_added_bos_and_eos_follow_the_file() -> None:
    assert _tokens(_vocabulary(add_bos=True, add_eos=True), "a") == ["<end>", "a", "<end>"]
    assert _tokens(_vocabulary(add_bos=False), "a") == ["a"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "bert"}, "'bert': supported are gpt2, llama, gemma4, t5"),
        ({"pre": None}, "none named"),
        ({"pre": "made-up"}, "made-up"),
    ],
)
def test_unknown_kinds_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        tokenizer_json(_vocabulary(**changes), "x.gguf")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"merges": ["a c"]}, "merge 'a c'"),
        ({"merges": ["ab"]}, "merge 'ab'"),
        ({"tokens": ["a", "b", "ab", "Ġ", "Ġa", "a"]}, "stands twice"),
        ({"model": "llama"}, "scores"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        tokenizer_json(_vocabulary(**changes), "x.gguf")


_GOOD = json.loads((TINYSTORIES / "tokenizer.json").read_text())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"{}",
        b"[" * 100_000,
        json.dumps({**_GOOD, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}).encode(),
        json.dumps({**_GOOD, "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}).encode(),
        json.dumps({**_GOOD, "model": {"type": "BPE", "vocab": {"a": 2**40}, "merges": []}}).encode(),
        json.dumps({**_GOOD, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}}}).encode(),
    ],
    ids=["empty", "text", "no model", "deep", "merge of nothing", "negative id", "huge id", "bad regex"],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(ModelFileError, match=r"^tokenizer\.json: "):
        Tokenizer.load(TokenizerFiles(tokenizer_json=path))
    assert time.monotonic() - start < 1


def test_a_tokenizer_without_a_way_back_to_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**_GOOD, "decoder": None}))
    with pytest.raises(UnsupportedModelError, match="decoder"):
        Tokenizer.load(TokenizerFiles(tokenizer_json=path))
    path.write_text(json.dumps({**_GOOD, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}))
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        Tokenizer.load(TokenizerFiles(tokenizer_json=path))


def test_missing_files_and_tokens_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no tokenizer"):
        Tokenizer.load(TokenizerFiles())
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: file"):
        Tokenizer.load(TokenizerFiles(tokenizer_json=tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFileError, match="'<nope>' is not in the vocabulary"):
        Tokenizer.load(TokenizerFiles(tokenizer_json=TINYSTORIES / "tokenizer.json", bos_token="<nope>"))


_KEEPS = """
import threading
from pathlib import Path
from octavo.config import EngineConfig
from octavo.engine.front_end import FrontEnd
from octavo.weights.sources import resolve

def resident():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10

tokenizer = FrontEnd.load(EngineConfig(), resolve("smollm2-135m")).tokenizer
tokenizer.encode("warm")
before = resident()
thread = threading.Thread(target=tokenizer.encode, args=("\\u0300a" * 300_000,))
thread.start()
thread.join()
print(resident() - before)
"""


@pytest.mark.model
def test_memory_for_a_long_text_goes_back_to_the_system() -> None:
    """glibc would keep a hundred megabytes in the arena of the thread that read it."""
    kept = subprocess.run([sys.executable, "-c", _KEEPS], capture_output=True, text=True, check=True).stdout
    assert int(kept) < 40 << 20
