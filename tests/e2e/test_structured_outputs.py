"""Answers that must obey something, over HTTP and with the real `openai` client."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI

from support.server_process import ServerProcess

USER: list[Any] = [{"role": "user", "content": "Tell me a story."}]
CHAT = "/v1/chat/completions"

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
"""Short enough for the tiny model's context, whatever it writes."""


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def chat(server: ServerProcess, **fields: Any) -> Any:
    return server.post(CHAT, {"messages": USER, "max_tokens": 100, **fields})


def content(reply: Any) -> str:
    assert reply.status == 200, reply.body
    [choice] = reply.body["choices"]
    assert choice["finish_reason"] == "stop", choice
    text: str = choice["message"]["content"]
    return text


def test_strict_json_schema(client: OpenAI) -> None:
    for seed in range(4):
        answer = client.chat.completions.create(
            model="tiny",
            messages=USER,
            max_tokens=120,
            seed=seed,
            temperature=1.0 if seed else 0.0,
            response_format=json_schema(PERSON),  # type: ignore[call-overload]
        )
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PERSON)


def test_a_stream_is_the_same_text(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 120, "seed": 5}
    options["response_format"] = json_schema(PERSON)
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}}, "[0-9]{3}-[0-9]{4}"),
        ({"structured_outputs": {"choice": ["north", "south"]}}, "north|south"),
        ({"structured_outputs": {"grammar": 'start: "a" ("b" | "c")~3 "d"'}}, "a[bc]{3}d"),
        ({"structured_outputs": {"json": '{"type": "boolean"}'}}, "true|false"),
        ({"guided_regex": "[xyz]{4}"}, "[xyz]{4}"),
        ({"guided_choice": ["north", "south"]}, "north|south"),
        ({"guided_json": {"const": "é"}}, '"é"'),
        ({"guided_grammar": 'start: "one" | "two"'}, "one|two"),
        ({"response_format": json_schema({"type": "null"})}, "null"),
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_way_to_ask(server: ServerProcess, wanted: Any, pattern: str, temperature: float) -> None:
    assert re.fullmatch(pattern, content(chat(server, **wanted, temperature=temperature)))


def test_completions_and_json_objects(server: ServerProcess) -> None:
    reply = server.post(
        "/v1/completions",
        {"prompt": ["Once", "Twice"], "max_tokens": 60, "n": 2, "structured_outputs": {"regex": "[a-z]{5}"}},
    )
    assert reply.status == 200
    texts = [(choice["text"], choice["finish_reason"]) for choice in reply.body["choices"]]
    assert len(texts) == 4 and all(re.fullmatch("[a-z]{5}", text) and why == "stop" for text, why in texts)
    reply = chat(server, response_format={"type": "json_object"}, max_tokens=1)
    assert reply.body["choices"][0]["message"]["content"].startswith("{")
    assert reply.body["choices"][0]["finish_reason"] == "length"


def test_a_tagged_part_obeys_its_schema(server: ServerProcess) -> None:
    tag = {"begin": "the", "schema": {"enum": [7, 8]}, "end": ">"}
    wanted = {"structural_tag": {"structures": [tag], "triggers": ["the"]}}
    reply = chat(server, structured_outputs=wanted, max_tokens=60, seed=3, n=8)
    texts = [choice["message"]["content"] for choice in reply.body["choices"]]
    tagged = [part for text in texts for part in text.split("the")[1:] if len(part) > 2]
    assert len(tagged) > 3 and all(re.match(" ?[78]>", part) for part in tagged), texts


def test_the_end_of_a_value_ends_the_answer_whatever_else_is_asked(server: ServerProcess) -> None:
    wanted = {"regex": "[0-9]{2}"}
    for more in ({"ignore_eos": True}, {"min_tokens": 40}, {"ignore_eos": True, "min_tokens": 50}):
        reply = chat(server, structured_outputs=wanted, **more)
        assert re.fullmatch("[0-9]{2}", content(reply)), more
    # Where the grammar lets it go on, it goes on.
    reply = chat(server, structured_outputs={"regex": "[0-9]*"}, max_tokens=30, ignore_eos=True)
    assert reply.body["choices"][0]["finish_reason"] == "length"
    assert reply.body["usage"]["completion_tokens"] == 30
    reply = chat(server, structured_outputs={"regex": "[0-9]*"}, max_tokens=30, min_tokens=20, temperature=1.0)
    assert reply.body["usage"]["completion_tokens"] >= 20


def test_a_cut_answer_says_so(server: ServerProcess) -> None:
    reply = chat(server, response_format=json_schema(PERSON), max_tokens=4)
    assert reply.body["choices"][0]["finish_reason"] == "length"
    reply = chat(server, structured_outputs={"regex": "[a-z]+"}, stop=["a", "e", "i", "o", "u"], ignore_eos=True)
    assert re.fullmatch("[b-df-hj-np-tv-z]*", reply.body["choices"][0]["message"]["content"])


def test_logprobs_are_the_models_own(server: ServerProcess) -> None:
    reply = chat(server, structured_outputs={"choice": ["zq", "qz"]}, logprobs=True, top_logprobs=3, temperature=0)
    entries = reply.body["choices"][0]["logprobs"]["content"]
    first = entries[0]
    assert first["logprob"] < min(top["logprob"] for top in first["top_logprobs"])


BAD = {
    "response_format.json_schema.schema": [
        {"response_format": json_schema(schema)}
        for schema in (
            {"type": "foo"}, {"type": 5}, {"$ref": "#/nope"}, {"not": {}}, {"uniqueItems": True},
            {"type": "string", "pattern": "(?=a)b"}, {"type": "string", "pattern": "["}, False, None,
            {"x-guidance": {"lenient": True}, "not": {}}, {"$ref": "#"}, {"$ref": "https://example.com/schema"},
        )
    ],
    "response_format.json_schema": [{"response_format": {"type": "json_schema"}}],
    "response_format.type": [{"response_format": {"type": kind}} for kind in ("xml", None, 5)],
    "structured_outputs.json": [{"structured_outputs": {"json": json}} for json in ("", "{", False, {"type": "foo"})],
    "structured_outputs.json_object": [{"structured_outputs": {"json_object": value}} for value in (False, "yes")],
    "structured_outputs.choice": [{"structured_outputs": {"choice": choice}} for choice in ([], "ab")],
    "structured_outputs.regex": [
        {"structured_outputs": {"regex": regex}}
        for regex in ("", "(", r"(a)\1", "(.{1,1000}){1,1000}", "\\p{Nope}", 5, "[[:a:]", "a{5000000000}")
    ],
    "structured_outputs.grammar": [
        {"structured_outputs": {"grammar": grammar}}
        for grammar in ("", 'root::="', "start: " + "(" * 100_000, "start: a", 'start: start "a"', "a" * 99)
    ],
    "structured_outputs.whitespace": [{"structured_outputs": {"whitespace": 1}}],
    "structured_outputs": [
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "json": {}}},
        {"structured_outputs": {"regex": "a"}, "beam_width": 2},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    ],
    "guided_json": [{"guided_json": {"type": "foo"}}],
    "allowed_token_ids": [{"allowed_token_ids": ids} for ids in ([], [-1], [512], [1 << 40])],
    "bad_words": [{"bad_words": [""]}, {"bad_words": ["a"] * 1025}, {"bad_words": ["a" * 2000]}],
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("param", BAD)
def test_what_cannot_be_is_a_400_that_names_its_field(server: ServerProcess, param: str, stream: bool) -> None:
    for fields in BAD[param]:
        reply = chat(server, **fields, stream=stream)
        assert reply.status == 400, (fields, reply.body)
        error = reply.body["error"]
        assert error["param"] == param and param in error["message"], (fields, error)
        assert len(error["message"]) < 400


def test_the_client_gets_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny",
            messages=USER,
            response_format=json_schema({"type": "foo"}),  # type: ignore[call-overload]
        )
    assert caught.value.param == "response_format.json_schema.schema"


def test_a_grammar_that_grows_too_hard_fails_alone(server: ServerProcess) -> None:
    """Its first token is easy; it is refused on the way, and nobody else feels it."""
    hard = {"structured_outputs": {"regex": "[0-9]{9}(.{1,1000}){1,1000}"}}
    plain = {"temperature": 0, "max_tokens": 40}
    alone = chat(server, **plain).body["choices"]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(chat, server, **plain) for _ in range(4)]
        refused = [pool.submit(chat, server, **hard, stream=stream) for stream in (False, True)]
        whole, streamed = (future.result() for future in refused)
        assert all(other.result().body["choices"] == alone for other in others)
    assert whole.status == 400 and "too complex" in whole.body["error"]["message"]
    assert streamed.status in (200, 400)


def test_allowed_tokens_and_bad_words(server: ServerProcess) -> None:
    reply = chat(server, allowed_token_ids=[300, 301], max_tokens=20, logprobs=True)
    assert len({entry["token"] for entry in reply.body["choices"][0]["logprobs"]["content"]}) <= 2
    plain = chat(server, temperature=0, max_tokens=30).body["choices"][0]["message"]["content"]
    word = plain.split()[1]
    without = chat(server, temperature=0, max_tokens=30, bad_words=[word]).body["choices"][0]["message"]["content"]
    assert word in plain.split() and word not in without.split()


def test_what_excludes_every_token_is_a_400(server: ServerProcess) -> None:
    reply = chat(server, allowed_token_ids=[300], structured_outputs={"regex": "[0-9]+"})
    assert reply.status == 400 and "no token is left" in reply.body["error"]["message"]
