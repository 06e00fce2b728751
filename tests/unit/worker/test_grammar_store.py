"""Grammars compiled once, kept while they are used, and within a number of bytes after that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octavo.errors import RequestError
from octavo.structured import JSON_SCHEMA, LARK, MAX_CHOICES, REGEX, Grammar, StructuredOutputsParams
from octavo.worker.grammar_store import MAX_GBNF_CHARS, GrammarStore
from support.byte_vocabulary import EOS, SIZE, byte_vocabulary


def store(max_bytes: int = 1 << 24) -> GrammarStore:
    made = GrammarStore(max_bytes)
    made.use_vocabulary(byte_vocabulary)
    return made


def accepts(made: GrammarStore, grammar: Grammar, text: bytes) -> bool:
    grammar_id = made.compile(grammar)
    matcher = made.matcher(grammar_id)
    assert matcher is not None
    found = matcher.consume_tokens([*text]) and matcher.is_accepting()
    made.release(grammar_id)
    return found


def test_one_text_is_compiled_once() -> None:
    made = store()
    first, second = made.compile(Grammar(REGEX, "a+")), made.compile(Grammar(REGEX, "a+", "elsewhere"))
    assert first == second and len(made) == 1
    assert made.compile(Grammar(LARK, "start: /a+/")) != first
    one, other = made.matcher(first), made.matcher(first)
    assert one is not None and other is not None
    assert one.consume_token(ord("a")) and not other.consume_token(ord("b"))
    assert one.consume_token(ord("a")), "matchers are not shared"


def test_the_vocabulary_is_loaded_with_the_first_grammar_and_once() -> None:
    times: list[int] = []

    def load() -> object:
        times.append(1)
        return byte_vocabulary()

    made = GrammarStore()
    made.use_vocabulary(load)  # type: ignore[arg-type]
    assert not times and made.mask_words == 0
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda i: made.compile(Grammar(REGEX, f"a{{{i % 3}}}b")), range(24)))
    assert times == [1] and made.mask_words == (SIZE + 31) // 32
    assert len(set(ids)) == len(made) == 3


def test_what_is_used_stays_and_the_rest_fits_the_bytes() -> None:
    made = store(max_bytes=5 * (64 << 10) + 5 * 64 * 10)
    used = made.compile(Grammar(REGEX, "used"))
    for i in range(200):
        made.release(made.compile(Grammar(REGEX, f"other{i}")))
    assert made.num_bytes <= 5 * (64 << 10) + 5 * 64 * 10 and len(made) <= 5
    assert made.matcher(used) is not None
    last = made.compile(Grammar(REGEX, "other199"))
    assert made.matcher(last) is not None
    made.release(used)
    for i in range(9):
        made.release(made.compile(Grammar(REGEX, f"new{i}")))
    assert made.matcher(used) is None


def test_many_grammars_take_no_more_memory_than_allowed() -> None:
    """A stream of schemas that are all different, as an attacker would send them."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    made = store(max_bytes=8 << 20)
    begin = 0
    for i in range(2000):
        schema = '{"enum":[' + ",".join(f'"v{i}-{j}"' for j in range(20)) + "]}"
        made.release(made.compile(Grammar(JSON_SCHEMA, schema)))
        if i == 200:
            begin = resident()
    assert resident() - begin < 24 << 20
    assert made.num_bytes <= 8 << 20


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar(REGEX, "(", "here"), "here: is no usable regular expression: unclosed group"),
        (Grammar(REGEX, r"(a)\1", "here"), "here: is no usable regular expression: backreferences"),
        (Grammar(LARK, "start: " + "(" * 9999, "here"), "here: is too complex"),
        (Grammar(LARK, "start: nope", "here"), 'here: there is no rule or terminal named "nope"'),
        (Grammar(LARK, 'root ::= ("a"', "here"), "here: is no usable grammar in GBNF: Expected ')'"),
        (Grammar(LARK, "root ::= " + "(" * 5000, "here"), "here: is no usable grammar in GBNF"),
        (Grammar(LARK, 'root ::= "' + "a" * MAX_GBNF_CHARS + '"', "here"), "here: in GBNF a grammar may have 65536"),
        (Grammar(JSON_SCHEMA, '{"type":"foo"}', "here"), 'here.type: is "foo"; must be one of null,'),
        (Grammar(JSON_SCHEMA, '{"not":{}}', "here"), "here.not: is not supported; there are type,"),
        (Grammar(JSON_SCHEMA, '{"x-guidance":{"lenient":true},"not":{}}', "here"), "here.not: is not supported"),
        (
            Grammar(JSON_SCHEMA, '{"oneOf":[{"type":"number"},{"type":"integer"}]}', "here"),
            "here.oneOf: is supported only",
        ),
        (Grammar(JSON_SCHEMA, '{"$ref":"#"}', "here"), "here: nothing can match it"),
        (Grammar(JSON_SCHEMA, '{"allOf":[false]}', "here"), "here: nothing can match it"),
        (Grammar(JSON_SCHEMA, '{"enum":[' + ",".join(map(str, range(120_000))) + "]}", "here"), "here: is too complex"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_compiled_says_why(grammar: Grammar, why: str) -> None:
    made = store()
    with pytest.raises(RequestError) as caught:
        made.compile(grammar)
    assert str(caught.value).startswith(why) and caught.value.param == "here"
    assert len(str(caught.value)) < 400 and len(made) == 0


def test_an_engine_without_vocabulary_has_no_grammars() -> None:
    with pytest.raises(RequestError, match="here is not supported by this engine"):
        GrammarStore().compile(Grammar(REGEX, "a", "here"))


def test_a_model_without_an_end_has_no_grammars() -> None:
    made = GrammarStore()
    made.use_vocabulary(lambda: byte_vocabulary().__class__(size=9, tokens=[], special_ids=[], eos_ids=[], encode=list))
    with pytest.raises(RequestError, match="no token that ends an answer"):
        made.compile(Grammar(REGEX, "a", "here"))


def test_what_json_may_look_like() -> None:
    made = store()
    grammar = Grammar(JSON_SCHEMA, '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')
    assert accepts(made, grammar, b'{"a":1}') and accepts(made, grammar, b'{ "a": 1 }')
    assert not accepts(made, grammar, b'{"a":1') and not accepts(made, grammar, b'{\n"a":1}')


def test_tags_stand_in_free_text() -> None:
    tags = {"structures": [{"begin": "<f>", "schema": {"enum": [1, 2]}, "end": "</f>"}], "triggers": ["<f"]}
    grammar = StructuredOutputsParams(structural_tag=tags).to_grammar()
    made = store()
    assert accepts(made, grammar, b"nothing") and accepts(made, grammar, b"so: <f>2</f> and <f>1</f>.")
    assert not accepts(made, grammar, b"so: <f>3</f>") and not accepts(made, grammar, b"so: <f>2")


def test_the_end_and_control_tokens_are_no_text() -> None:
    made = store()
    matcher = made.matcher(made.compile(Grammar(REGEX, "(.|\n)*")))
    assert matcher is not None
    allowed = [i for i in range(SIZE) if matcher.compute_bitmask()[i // 8] >> i % 8 & 1]
    assert EOS in allowed and EOS + 1 not in allowed and max(allowed) == EOS


def test_as_many_choices_as_a_request_may_hold() -> None:
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    choices = StructuredOutputsParams(choice=tuple(f"c{i}" for i in range(MAX_CHOICES)))
    matcher = store.matcher(store.compile(choices.to_grammar()))
    assert matcher is not None
    for letter in f"c{MAX_CHOICES - 1}":
        matcher.compute_bitmask()
        assert matcher.consume_token(ord(letter))
    assert matcher.is_accepting()


@pytest.mark.parametrize("text", ['start: "a" B\nB: /x|::=/', 'root ::= "a" b\nb ::= "x" | "::="'])
def test_either_notation(text: str) -> None:
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    for answer in ("ax", "a::="):
        matcher = store.matcher(store.compile(Grammar(LARK, text)))
        assert matcher is not None
        assert all(matcher.consume_token(ord(letter)) for letter in answer) and matcher.is_accepting()
