"""What a case does to chats: tool calls, chat templates, and the ids that texts become."""

from __future__ import annotations

import json
import random
from typing import Any

from tokenizers import Tokenizer

from cases.http_runner import HTTPRunner
from octavo.engine.parsers.choose import OutputFormat, make_parser
from octavo.engine.parsers.pieces import ParsedAnswer
from support.server_process import TINY_MODEL

Data = dict[str, Any]
CHAT = "/v1/chat/completions"


def tools(*names: str) -> list[Data]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def message_of(runner: HTTPRunner, fields: Data) -> tuple[Data, str]:
    """Message and finish reason of a chat with one choice, which must be the same whole and streamed, ids aside."""
    reply = runner.server.post(CHAT, fields)
    assert reply.status == 200, reply.raw
    [choice] = reply.body["choices"]
    whole = {"content": choice["message"]["content"] or "", "calls": []}
    for call in choice["message"].get("tool_calls", []):
        whole["calls"].append([call["function"]["name"], call["function"]["arguments"]])
    streamed: Data = {"content": "", "calls": []}
    reasons = []
    for chunk in runner.server.stream(CHAT, fields).chunks:
        for piece in chunk["choices"]:
            delta = piece["delta"]
            streamed["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    streamed["calls"].append([call["function"]["name"], ""])
                streamed["calls"][call["index"]][1] += call["function"]["arguments"]
            reasons += [piece["finish_reason"]] if piece["finish_reason"] else []
    assert streamed == whole and reasons == [choice["finish_reason"]]
    return whole, choice["finish_reason"]


def forced_calls(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """The model is forced to say a text, of which tokens are single bytes."""
    messages = [{"role": "user", "content": given["say"]}]
    fields = {"messages": messages, "tools": tools(*given["tools"]), **given.get("fields", {})}
    message, reason = message_of(runner, fields)
    assert message["calls"] == expected.get("calls", [])
    assert message["content"] == expected.get("content", "")
    assert reason == expected["finish_reason"]
    if expected.get("json", True):
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in message["calls"])


def required_and_cut(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """A call that must be made, with every limit up to one: `length` whenever it is cut, streamed or not."""
    fields = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": given["schema"]}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    whole, reason = message_of(runner, fields)
    assert reason == "tool_calls" and len(whole["calls"]) == 1
    size = runner.server.post(CHAT, fields).body["usage"]["completion_tokens"]
    for limit in range(1, min(given["limit"], size + 2) + 1):
        message, reason = message_of(runner, {**fields, "max_tokens": limit})
        assert reason == ("length" if limit < size else "tool_calls"), limit
        assert message["content"] == "", "the beginning of a call is no text"
        for name, arguments in message["calls"]:
            assert name == "f" and whole["calls"][0][1].startswith(arguments)


def fed_in_groups(given: Data, expected: Data) -> None:
    """A parser gets its text in deltas of so many tokens each, a token being a few characters."""
    text = given["say"]
    tokens = [text[i : i + 3] for i in range(0, len(text), 3)]
    for size in (*given["sizes"], len(tokens)):
        parser = make_parser(
            OutputFormat(tool_parser=given["parser"]), tool_names=frozenset(given["tools"]), tool_choice="auto"
        )
        assert parser is not None
        answer = ParsedAnswer()
        for i in range(0, len(tokens), size):
            answer.add(parser.feed("".join(tokens[i : i + size])))
        answer.add(parser.finish())
        assert [[call.name, call.arguments] for call in answer.tool_calls] == expected["calls"], size


def refuse_chat(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """A chat is refused with a message, streamed or not, and the next one is answered."""
    for stream in (False, True):
        reply = runner.server.post(CHAT, {**given, "stream": stream})
        assert reply.status == 400
        assert expected["message"] in reply.error["message"] and reply.error["param"] == expected["param"]
    good = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert runner.server.post(CHAT, good).status == 200


def token_ids(runner: HTTPRunner, **fields: Any) -> list[int]:
    reply = runner.server.post("/tokenize", fields)
    assert reply.status == 200, reply.raw
    ids: list[int] = reply.body["tokens"]
    return ids


def rendered_text(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """The prompt of a chat, as text."""
    ids = token_ids(runner, messages=given["messages"])
    text = runner.server.post("/detokenize", {"tokens": ids}).body["prompt"]
    assert text == expected["text"], text


def control_tokens(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """How often each control token stands in a chat's prompt; a user's spelling of one is text."""
    tokenizer = Tokenizer.from_file(str(TINY_MODEL / "tokenizer.json"))
    for content in given["contents"]:
        ids = token_ids(runner, messages=[{"role": "user", "content": content}])
        for token, count in expected["counts"].items():
            assert ids.count(tokenizer.token_to_id(token)) == count, (content, token)


def one_begin(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """A prompt that spells the begin of sequence has one, in /tokenize and in generation alike."""
    bos = Tokenizer.from_file(str(TINY_MODEL / "tokenizer.json")).token_to_id("<s>")
    for prompt in given["prompts"]:
        ids = token_ids(runner, prompt=prompt)
        assert ids[0] == bos and ids.count(bos) == expected["count"], prompt
        reply = runner.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        assert reply.body["usage"]["prompt_tokens"] == len(ids)


def reference_ids(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """Ids are those of the tokenizers library, but for the second begin of sequence."""
    reference = Tokenizer.from_file(str(TINY_MODEL / "tokenizer.json"))
    bos = reference.token_to_id("<s>")
    chance = random.Random(7)
    alphabet = given["alphabet"]
    texts = given["texts"] + [
        "".join(chance.choices(alphabet, k=chance.randint(1, 12))) for _ in range(given["num_random"])
    ]
    for text in texts:
        wanted = reference.encode(text).ids
        if wanted[:2] == [bos, bos]:
            del wanted[0]
        assert token_ids(runner, prompt=text) == wanted, text
