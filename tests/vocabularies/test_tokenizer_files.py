"""Where a folder's tokenizer is found, and what is refused in it."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.chat_template import ChatTemplate
from octavo.engine.front_end import FrontEnd
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ModelError, ModelFileError, UnsupportedModelError
from octavo.weights.sentencepiece import parse_sentencepiece
from octavo.weights.tokenizer_files import read_tokenizer_files
from support.paths import TINYSTORIES
from vocabularies import tiny


def config(path: Path, **changes: Any) -> None:
    file = path / "tokenizer_config.json"
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**old, **changes}))


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    path = tiny.folder("llama", tmp_path)
    (path / "tokenizer.json").write_bytes((TINYSTORIES / "tokenizer.json").read_bytes())
    files = read_tokenizer_files(path)
    assert files.tokenizer_json == path / "tokenizer.json" and files.vocabulary is None


@pytest.mark.parametrize("name", ["opt", "llama", "llama3", "qwen", "tekken"])
def test_each_kind_says_what_it_is(name: str, tmp_path: Path) -> None:
    kind = tiny.load(name, tmp_path).kind
    assert (
        kind
        == {
            "opt": "byte-level BPE (vocab.json, merges.txt)",
            "llama": "SentencePiece BPE (tokenizer.model)",
            "llama3": "byte-level BPE (ranks in tokenizer.model)",
            "qwen": "byte-level BPE (ranks in qwen.tiktoken)",
            "tekken": "byte-level BPE (tekken.json)",
        }[name]
    )


def test_tokens_beside_the_vocabulary_are_added(tmp_path: Path) -> None:
    path = tiny.folder("llama", tmp_path)
    size = tiny.load("llama", tmp_path).vocab_size
    added = {
        str(size): {"content": "<|extra|>", "special": True},
        str(size + 1): {"content": "<word>", "special": False},
    }
    config(path, added_tokens_decoder=added, eos_token="<|extra|>", add_eos_token=True, add_bos_token=False)
    tokenizer = Tokenizer.load(read_tokenizer_files(path, "llama"))
    assert tokenizer.encode("<|extra|><word>") == [size, size + 1, size]
    assert size in tokenizer.special_ids and size + 1 not in tokenizer.special_ids
    assert (tokenizer.eos_token, tokenizer.eos_id, tokenizer.vocab_size) == ("<|extra|>", size, size + 2)


def test_a_tokenizer_json_gets_what_only_its_config_names(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TINYSTORIES / "tokenizer.json").read_bytes())
    config(tmp_path, added_tokens_decoder={"512": {"content": "<|im_end|>", "special": True}})
    tokenizer = Tokenizer.load(read_tokenizer_files(tmp_path))
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [512] and 512 in tokenizer.special_ids
    config(tmp_path, added_tokens_decoder={"600": {"content": "<|im_end|>", "special": True}})
    with pytest.raises(ModelFileError, match="is to have the id 600, but there it would have 512"):
        Tokenizer.load(read_tokenizer_files(tmp_path))


def test_older_folders_name_tokens_in_files_of_their_own(tmp_path: Path) -> None:
    path = tiny.folder("gpt2", tmp_path)
    (path / "tokenizer_config.json").unlink()
    size = tiny.load("gpt2", tmp_path).vocab_size
    (path / "tokenizer_config.json").unlink()
    (path / "added_tokens.json").write_text(json.dumps({"<|stop|>": size, "<w>": size + 1}))
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|stop|>"}}))
    tokenizer = Tokenizer.load(read_tokenizer_files(path, "gpt2"))
    assert tokenizer.encode("<|stop|><w>") == [size, size + 1]
    assert (tokenizer.eos_token, size in tokenizer.special_ids, size + 1 in tokenizer.special_ids) == (
        "<|stop|>",
        True,
        False,
    )


@pytest.mark.parametrize("legacy", [True, False])
def test_where_llama_puts_a_space_in_front(legacy: bool, tmp_path: Path) -> None:
    path = tiny.folder("llama", tmp_path)
    config(path, legacy=legacy)
    tokenizer = Tokenizer.load(read_tokenizer_files(path, "llama"))
    plain = tokenizer.encode("a", add_special_tokens=False)
    behind = tokenizer.encode("a</s>a", add_special_tokens=False)
    assert behind[-len(plain) :] == plain if legacy else behind[-len(plain) :] != plain


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "a"}}, ("a", None)),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "a"},
                                                      {"name": "tool_use", "template": "b"}]}}, ("a", "b")),
        ({"tokenizer_config.json": {"chat_template": "a"}, "chat_template.json": {"chat_template": "c"}}, ("c", None)),
        ({"chat_template.json": {"chat_template": "c"}, "chat_template.jinja": "d"}, ("d", None)),
        ({"chat_template.jinja": "d", "additional_chat_templates/tool_use.jinja": "e"}, ("d", "e")),
        ({}, (None, None)),
    ],
)  # fmt: skip
def test_chat_templates_are_found(
    files: dict[str, Any], expected: tuple[str | None, str | None], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    found = read_tokenizer_files(tmp_path)
    assert (found.chat_template, found.tool_template) == expected


@pytest.mark.parametrize(
    ("name", "file", "content", "says"),
    [
        ("gpt2", "merges.txt", "#version: 0.2\nno such\n", "merges.txt: line 2: merge 'no such' names no tokens"),
        ("gpt2", "vocab.json", '{"a": 0, "b": 0}', "vocab.json: file: gives one id to two tokens"),
        ("gpt2", "vocab.json", '{"a": -1}', "vocab.json"),
        ("gpt2", "config.json", '{"model_type": "mystery"}', "'mystery'.*known are gpt2"),
        ("qwen", "config.json", '{"model_type": "mystery"}', "'mystery'.*known are llama, qwen"),
        ("qwen", "qwen.tiktoken", "YQ== 1\n", "line 1: must be a token in base64 and the rank 0"),
        ("qwen", "qwen.tiktoken", "!! 0\n", "token 0"),
        ("tekken", "tekken.json", "{}", "tekken.json: file"),
        (
            "tekken",
            "tekken.json",
            '{"config": {"pattern": "x", "default_vocab_size": 9}, "vocab": []}',
            "9 tokens, 1000",
        ),
        ("llama", "tokenizer.model", "\x0a\xff", "is not a SentencePiece model"),
        ("llama", "tokenizer.model", "", "is not a SentencePiece model"),
    ],
)
def test_damaged_files_are_refused_by_name(name: str, file: str, content: str, says: str, tmp_path: Path) -> None:
    path = tiny.folder(name, tmp_path)
    (path / file).write_bytes(content.encode("latin-1"))
    model_type = json.loads((path / "config.json").read_text())["model_type"]
    with pytest.raises(ModelError, match=says):
        Tokenizer.load(read_tokenizer_files(path, model_type))


@pytest.mark.parametrize("name", ["vocab.txt", "spiece.model"])
def test_kinds_of_encoders_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(UnsupportedModelError, match=re.escape(name)):
        read_tokenizer_files(tmp_path)


def test_no_prefix_of_a_sentencepiece_model_is_taken_for_one_with_less_in_it() -> None:
    data = (tiny.DATA / "bpe.model").read_bytes()
    whole = parse_sentencepiece(data, "x")
    for end in range(0, len(data), 37):
        try:
            part = parse_sentencepiece(data[:end], "x")
        except ModelFileError:
            continue
        assert part.pieces == whole.pieces[: len(part.pieces)]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\x12\x02\x18\x03", "word pieces"),
        (b"\x12\x03\xc0\x01\x01", "suffixes"),
        (b"\x0a\x00", "piece 1: has 0 bytes"),
        (b"\x0b", "is not"),
        (b"\x0a\xff\xff\xff\xff\x0f", "is not"),
        (b"\xff" * 12, "is not"),
    ],
)
def test_odd_sentencepiece_models_are_refused(message: bytes, says: str) -> None:
    piece = b"\x0a\x01a\x15" + struct.pack("<f", -1.0)
    with pytest.raises(ModelError, match=says):
        parse_sentencepiece(b"\x0a" + bytes([len(piece)]) + piece + message, "x")


def test_a_conversation_with_tools_takes_the_template_for_tools() -> None:
    tokenizer = Tokenizer.load(read_tokenizer_files(TINYSTORIES))
    default, tools = ChatTemplate("plain", {}), ChatTemplate("tools", {})
    front_end = FrontEnd(tokenizer, default, tool_template=tools)
    messages = [{"role": "user", "content": "x"}]
    function = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert tokenizer.decode(front_end.render_chat(messages)) == "plain"
    assert tokenizer.decode(front_end.render_chat(messages, tools=[function])) == "tools"
    assert front_end.template_source == "tools"
    assert FrontEnd(tokenizer, default).template_source == "plain"
