"""Where a Hugging Face folder keeps its tokenizer and its chat templates, and what the files beside them say.

A folder may hold several forms of one tokenizer; the first of `_VOCABULARIES` that is there counts. Special tokens are
told by tokenizer_config.json, or in older folders by special_tokens_map.json and added_tokens.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import AddedToken, TokenizerFiles
from octavo.weights.files import JSONObject, is_there, read_json, read_text

CONFIG = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
ADDED = "added_tokens.json"
MERGES = "merges.txt"
TEMPLATE = "chat_template.jinja"
OLD_TEMPLATE = "chat_template.json"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
MAX_TEMPLATE_BYTES = 4 << 20
MAX_ADDED_TOKENS = 1 << 16

_VOCABULARIES = ("tokenizer.model", "tekken.json", "vocab.json", "*.tiktoken", "tiktoken.model")
TOKENIZER_FILES = (
    "tokenizer.json",
    *_VOCABULARIES,
    MERGES,
    CONFIG,
    SPECIAL,
    ADDED,
    TEMPLATE,
    OLD_TEMPLATE,
    TOOL_TEMPLATE,
)
"""Patterns of all that is read of a folder for its tokenizer."""
_REFUSED = {"vocab.txt": "WordPiece", "spiece.model": None, "sentencepiece.bpe.model": None}


def read_tokenizer_files(folder: Path, model_type: str = "") -> TokenizerFiles:
    """Where the folder's tokenizer is, and what is said of it.

    Args:
        model_type: Of config.json.

    Raises:
        ModelFileError: If there is no tokenizer, or a value has a type it may not have.
        UnsupportedModelError: If the tokenizer is of a kind that Octavo does not have.
    """
    config = _object(folder / CONFIG)
    special = _object(folder / SPECIAL)
    merged = {**special, **{key: value for key, value in config.items() if value is not None}}
    source = CONFIG if is_there(folder / CONFIG) else SPECIAL
    template, tool_template = _templates(folder, config)
    return TokenizerFiles(
        **_where(folder),
        chat_template=template,
        tool_template=tool_template,
        bos_token=_token(merged, "bos_token", source),
        eos_token=_token(merged, "eos_token", source),
        unknown_token=_token(merged, "unk_token", source),
        add_bos=_flag(config, "add_bos_token"),
        add_eos=_flag(config, "add_eos_token"),
        add_prefix_space=_flag(config, "add_prefix_space"),
        legacy=_flag(config, "legacy"),
        added=_added_tokens(folder, merged, source),
        tokenizer_class=str(config.get("tokenizer_class") or ""),
        model_type=model_type,
    )


def _where(folder: Path) -> dict[str, Path | None]:
    if is_there(folder / "tokenizer.json"):
        return {"tokenizer_json": folder / "tokenizer.json"}
    for pattern in _VOCABULARIES:
        found = sorted(folder.glob(pattern))
        if found:
            return {"vocabulary": found[0], "merges": folder / MERGES if found[0].name == "vocab.json" else None}
    for name, kind in _REFUSED.items():
        if (folder / name).is_file():
            what = f"a {kind} vocabulary" if kind else "a SentencePiece model of an encoder"
            raise UnsupportedModelError(f"{name}: {what}; supported are tokenizer.json, {', '.join(_VOCABULARIES)}")
    why = f"no such file, nor {', '.join(_VOCABULARIES)}: the folder has no tokenizer"
    raise ModelFileError("tokenizer.json", "file", why)


def _object(path: Path) -> JSONObject:
    found: JSONObject = read_json(path, JSONObject) if is_there(path) else {}
    return found


def _templates(folder: Path, config: JSONObject) -> tuple[str | None, str | None]:
    """The chat template, and the one for conversations with tools where that is another."""
    default, tools = _named(config.get("chat_template"), CONFIG)
    old = _object(folder / OLD_TEMPLATE)
    if "chat_template" in old:
        default = _named(old["chat_template"], OLD_TEMPLATE)[0]
    if is_there(folder / TEMPLATE):
        default = read_text(folder / TEMPLATE, MAX_TEMPLATE_BYTES)
    if is_there(folder / TOOL_TEMPLATE):
        tools = read_text(folder / TOOL_TEMPLATE, MAX_TEMPLATE_BYTES)
    return default, tools


def _named(value: Any, file: str) -> tuple[str | None, str | None]:
    """A template: a string, or a list of named ones, of which `default` and `tool_use` count."""
    names: dict[Any, Any] = {"default": value}
    if isinstance(value, list):
        # A name may be anything, lists too, which are no keys.
        names = {str(i.get("name")): i.get("template") for i in value if isinstance(i, dict)}
    found = names.get("default"), names.get("tool_use")
    if not all(template is None or isinstance(template, str) for template in found):
        raise ModelFileError(file, "chat_template", "must be a string or a list of named strings")
    return found


def _token(config: JSONObject, key: str, file: str) -> str | None:
    """A special token: a string, or an object that holds it as `content`."""
    value: Any = config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise ModelFileError(file, key, f"is {repr(value)[:60]}; must be a string")
    return value


def _flag(config: JSONObject, key: str) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelFileError(CONFIG, key, f"is {repr(value)[:60]}; must be true or false")
    return value


def _added_tokens(folder: Path, config: JSONObject, source: str) -> tuple[AddedToken, ...]:
    """In the order of their ids; those without one, which the vocabulary must hold, last."""
    named = [
        name for key in ("bos_token", "eos_token", "unk_token", "pad_token") if (name := _token(config, key, source))
    ]
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    if isinstance(extra, list):
        named += [str(token.get("content")) if isinstance(token, dict) else str(token) for token in extra]
    listed = config.get("added_tokens_decoder")
    if listed is not None:
        tokens = _listed(listed)
    else:
        older = _object(folder / ADDED)
        if not all(_is_id(i) for i in older.values()):
            raise ModelFileError(ADDED, "file", "must map each token to its id")
        tokens = [AddedToken(content=content, id=i, special=content in named) for content, i in older.items()]
    known = {token.content for token in tokens}
    tokens.sort(key=lambda token: token.id or 0)
    tokens += [AddedToken(content=content) for content in dict.fromkeys(named) if content not in known]
    if len(tokens) > MAX_ADDED_TOKENS:
        raise ModelFileError(source, "added tokens", f"are {len(tokens)}; at most {MAX_ADDED_TOKENS} are allowed")
    return tuple(tokens)


def _listed(value: Any) -> list[AddedToken]:
    flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
    found = []
    for key, token in value.items() if isinstance(value, dict) else [("", None)]:
        token = token if isinstance(token, dict) else {}
        content = token.get("content")
        if not isinstance(content, str) or not content or not _is_id(_number(key)):
            raise ModelFileError(CONFIG, "added_tokens_decoder", "must map ids to objects with a content")
        set_flags = {flag: bool(token.get(flag, flag == "normalized" and not token.get("special"))) for flag in flags}
        found.append(AddedToken(content=content, id=int(key), **set_flags))
    return found


def _number(text: str) -> int | None:
    """Digits as a number; None if there are none, or too many for any id."""
    return int(text) if text.isdecimal() and len(text) <= 10 else None


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24
