"""What other people's tokenizers make of a text. Only for tests that have those libraries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Encode = Callable[[str], list[int]]


def _in_parts(controls: Mapping[str, int], encode: Encode) -> Encode:
    """Control tokens as themselves, and each text between them by `encode`."""
    pattern = re.compile("(" + "|".join(map(re.escape, sorted(controls, key=len, reverse=True))) + ")")

    def encode_all(text: str) -> list[int]:
        ids: list[int] = []
        for part in pattern.split(text):
            ids += [controls[part]] if part in controls else encode(part) if part else []
        return ids

    return encode_all


def sentencepiece_model(model: bytes) -> Encode:
    """The library that made the vocabulary. It gives no control tokens, so these are cut out of the text first."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    size = processor.get_piece_size()
    controls = {processor.id_to_piece(i): i for i in range(size) if processor.is_control(i) or processor.is_unknown(i)}
    return _in_parts(controls, processor.encode)


def keep_spaces(model: bytes) -> bytes:
    """A SentencePiece model that drops no spaces, as the Llama tokenizers made of one."""
    proto = _proto()
    proto.ParseFromString(model)
    proto.normalizer_spec.remove_extra_whitespaces = False
    return bytes(proto.SerializeToString())


def sentencepiece_of_gguf(path: Path) -> Encode:
    """The SentencePiece model that the metadata of a GGUF file describes, in the library itself."""
    from octavo.weights.gguf import GGUFFile
    from octavo.weights.gguf_vocabulary import read_vocabulary

    with GGUFFile(path) as file:
        vocabulary = read_vocabulary(file)
    assert vocabulary.scores is not None and vocabulary.token_types is not None
    proto = _proto()
    for token, score, kind in zip(
        vocabulary.tokens, vocabulary.scores.tolist(), vocabulary.token_types.tolist(), strict=True
    ):
        proto.pieces.add(piece=token.replace(" ", "▁") if kind == 4 else token, score=score, type=kind)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type, trainer.byte_fallback = 2, True
    for role in ("unk", "bos", "eos", "pad"):
        name = {"unk": "unknown", "pad": "padding"}.get(role, role)
        token_id = getattr(vocabulary, f"{name}_id")
        setattr(trainer, f"{role}_id", -1 if token_id is None else token_id)
        if token_id is not None:
            setattr(trainer, f"{role}_piece", vocabulary.tokens[token_id])
    normalizer.name, normalizer.remove_extra_whitespaces = "identity", False
    normalizer.add_dummy_prefix = vocabulary.add_space_prefix is not False
    return sentencepiece_model(proto.SerializeToString())


def _proto() -> Any:
    from transformers.utils import sentencepiece_model_pb2_new

    return sentencepiece_model_pb2_new.ModelProto()


def tiktoken_ranks(path: Path, pattern: str, controls: Mapping[str, int], *, nfc: bool) -> Encode:
    """With `nfc`, each text between control tokens is put into that normal form first, as Hugging Face's Qwen does."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks = load_tiktoken_bpe(str(path))
    encoding = tiktoken.Encoding(path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    form = (lambda text: unicodedata.normalize("NFC", text)) if nfc else str
    return _in_parts(controls, lambda text: encoding.encode_ordinary(form(text)))


def tekken(path: Path, controls: Mapping[str, int]) -> Encode:
    """As Mistral's own code: tiktoken's ids, counted from behind the control tokens."""
    import base64
    import json

    import tiktoken

    content = json.loads(path.read_text())
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in content["vocab"]}
    pattern, offset = content["config"]["pattern"], content["config"]["default_num_special_tokens"]
    encoding = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return _in_parts(controls, lambda text: [i + offset for i in encoding.encode(text, disallowed_special=())])


def transformers_folder(path: Path, **options: Any) -> Encode:
    """What AutoTokenizer makes of the same files, without what it puts around a text."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, **options)
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
