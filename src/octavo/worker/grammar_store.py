"""Compiled grammars: what a row's matcher is copied from. llguidance compiles them, and says which tokens may follow.

It is loaded with the first grammar. Its own limits bound the work for any text: those here keep a compilation below a
second, and a step's mask at some hundredths of one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.errors import RequestError
from octavo.structured import JSON_OPTIONS, JSON_SCHEMA, REGEX, TAGS, Grammar, Vocabulary
from octavo.worker.grammar_errors import refusal
from octavo.worker.grammar_multiples import check_multiples
from octavo.worker.schema_errors import MAX_MESSAGE_CHARS

if TYPE_CHECKING:
    import llguidance

DEFAULT_CACHE_BYTES = 64 << 20

MAX_GBNF_CHARS = 64 << 10
"""It is read in Python, beside the loop: a longer one would hold everybody up."""

_BASE_BYTES = 64 << 10
_BYTES_PER_CHAR = 64
"""What a compiled grammar takes, measured on schemas of 100 to 100 000 characters; llguidance does not tell."""


class _Compiled(msgspec.Struct):
    grammar_id: int
    key: tuple[str, str]
    matcher: Any
    num_bytes: int
    num_users: int = 0


class GrammarStore:
    """Grammars in use, and those used last as far as memory allows. Safe to use from several threads.

    Args:
        max_bytes: For grammars that nobody uses; the least recently used goes first.
    """

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._load: Callable[[], Vocabulary] | None = None
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._by_key: OrderedDict[tuple[str, str], _Compiled] = OrderedDict()
        """The least recently used first."""
        self._by_id: dict[int, _Compiled] = {}
        self._num_made = 0
        self.num_bytes = 0
        """Of all that are kept, in use or not."""
        self.mask_words = 0
        """Width of a mask, known with the first grammar."""

    def __len__(self) -> int:
        return len(self._by_key)

    def use_vocabulary(self, load: Callable[[], Vocabulary]) -> None:
        """Say where the vocabulary comes from; it is loaded with the first grammar."""
        self._load = load

    def prepare(self, param: str) -> None:
        """Load what all grammars need, once; whoever comes meanwhile waits. See `core.step.Grammars`."""
        self._tokenizer_for(param)

    def compile(self, grammar: Grammar) -> int:
        """Compile a grammar, or find it compiled. It is kept until `release`, once for each time this was called.

        Returns:
            Its id, for `matcher`.

        Raises:
            RequestError: Naming the grammar's field, if it is none, nothing matches it, or it takes too much.
        """
        key = (grammar.kind, grammar.text)
        with self._lock:
            known = self._by_key.get(key)
            if known is not None:
                return self._use(known)
        matcher = self._compiled(grammar)
        with self._lock:
            known = self._by_key.get(key)
            if known is None:
                self._num_made += 1
                num_bytes = _BASE_BYTES + _BYTES_PER_CHAR * len(grammar.text)
                known = _Compiled(self._num_made, key, matcher, num_bytes)
                self._by_key[key] = self._by_id[known.grammar_id] = known
                self.num_bytes += num_bytes
            return self._use(known)

    def release(self, grammar_id: int) -> None:
        """One user less."""
        with self._lock:
            self._by_id[grammar_id].num_users -= 1
            self._make_room()

    def matcher(self, grammar_id: int) -> llguidance.LLMatcher | None:
        """A matcher of one's own, at the beginning. None if there is no such grammar any more."""
        with self._lock:
            known = self._by_id.get(grammar_id)
            return None if known is None else known.matcher.deep_copy()

    def _use(self, compiled: _Compiled) -> int:
        compiled.num_users += 1
        self._by_key.move_to_end(compiled.key)
        self._make_room()
        return compiled.grammar_id

    def _make_room(self) -> None:
        if self.num_bytes <= self._max_bytes:
            return
        for compiled in [c for c in self._by_key.values() if not c.num_users]:
            del self._by_key[compiled.key], self._by_id[compiled.grammar_id]
            self.num_bytes -= compiled.num_bytes
            if self.num_bytes <= self._max_bytes:
                return

    def _compiled(self, grammar: Grammar) -> llguidance.LLMatcher:
        import llguidance

        tokenizer = self._tokenizer_for(grammar.param)
        check_multiples(grammar)
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=200_000,
            step_max_items=50_000,
            max_lexer_states=20_000,
            max_grammar_size=200_000,
            verbose_errors=False,
        )
        matcher = llguidance.LLMatcher(tokenizer, _text_for_llguidance(grammar), log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # tells whether anything matches, and how hard that is
        if matcher.is_error():
            raise refusal(grammar, matcher)
        return matcher

    def _tokenizer_for(self, param: str) -> llguidance.LLTokenizer:
        with self._loading:
            if self._tokenizer is None:
                if self._load is None:
                    raise RequestError(param, message=f"{param} is not supported by this engine")
                vocabulary = self._load()
                self._tokenizer = _tokenizer(vocabulary, param)
                self.mask_words = (vocabulary.size + 31) // 32
            return self._tokenizer


class _TokenTable:
    """A vocabulary in the form that llguidance takes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_ids[0]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        """Asked for where a grammar leaves one text only: its usual tokens are preferred to others."""
        return self._encode(text)


def _tokenizer(vocabulary: Vocabulary, param: str) -> llguidance.LLTokenizer:
    import llguidance

    if not vocabulary.eos_ids:
        raise RequestError(param, message=f"{param}: this model has no token that ends an answer")
    table: Any = _TokenTable(vocabulary)
    return llguidance.LLTokenizer(table, n_vocab=vocabulary.size, eos_token=vocabulary.eos_ids)


def _text_for_llguidance(grammar: Grammar) -> str:
    import llguidance

    matcher = llguidance.LLMatcher
    if grammar.kind == JSON_SCHEMA:
        options: Any = JSON_OPTIONS
        return matcher.grammar_from_json_schema(grammar.text, overrides=options)
    if grammar.kind == REGEX:
        return matcher.grammar_from_regex(grammar.text)
    if grammar.kind == TAGS:
        return _tags_as_lark(grammar.text)
    return matcher.grammar_from_lark(_gbnf_as_lark(grammar) if "::=" in grammar.text else grammar.text)


def _gbnf_as_lark(grammar: Grammar) -> str:
    """llama.cpp's notation, which vLLM takes as well, in Lark's. A text in Lark's notation stays as it is."""
    from llguidance import gbnf_to_lark

    if len(grammar.text) > MAX_GBNF_CHARS:
        why = f"in GBNF a grammar may have {MAX_GBNF_CHARS} characters; this one has {len(grammar.text)}"
        raise RequestError(grammar.param, message=f"{grammar.param}: {why}")
    try:
        return gbnf_to_lark.any_to_lark(grammar.text)
    except Exception as error:  # the library raises bare ones, too
        why = " ".join(str(error).split())[:MAX_MESSAGE_CHARS]
        raise RequestError(grammar.param, message=f"{grammar.param}: is no usable grammar in GBNF: {why}") from None


def _tags_as_lark(text: str) -> str:
    """Free text, into which tags are set; see `StructuredOutputsParams.structural_tag`."""
    import llguidance

    tags = []
    for tag in msgspec.json.decode(text):
        schema = tag["schema"] if isinstance(tag["schema"], dict) else {}
        grammar = {**schema, "x-guidance": JSON_OPTIONS}
        tags.append(llguidance.StructTag(trigger=tag["trigger"], begin=tag["begin"], grammar=grammar, end=tag["end"]))
    return llguidance.StructTag.to_grammar(tags, assume_special=False)
