"""The real `openai` client against a real server."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest
from openai import OpenAI

from support.server_process import ServerProcess

PROMPT = "Once upon a time, there was a little"
DETAILS = {"prompt_tokens_details"}
"""What the second of two requests finds in the cache is what the first left there."""

USER: list[Any] = [{"role": "user", "content": "Tell me a story."}]


def test_models(client: OpenAI) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=12, temperature=0)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_chat_stream_equals_chat(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in parts[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in parts) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in parts if chunk.choices[0].finish_reason] == ["length"]
    assert parts[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.model_dump(exclude=DETAILS) == whole.usage.model_dump(exclude=DETAILS)
    assert all(chunk.usage is None for chunk in parts)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_chat_default_limit_is_the_context(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=USER, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.total_tokens == 256
    assert answer.choices[0].finish_reason == "length"


def test_text_parts_and_developer_messages(client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=3)
    assert answer.usage is not None and answer.usage.completion_tokens <= 3


def test_completion_default_limit_is_sixteen(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_stop_string(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 40}
    full = client.completions.create(**options).choices[0].text
    stop = full[10:14]
    cut = client.completions.create(**options, stop=[stop]).choices[0]
    assert cut.text == full[: full.index(stop)]
    assert cut.finish_reason == "stop"
    streamed = list(client.completions.create(**options, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.text
    assert streamed[-1].choices[0].finish_reason == "stop"
    kept = client.completions.create(**options, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == cut.text + stop


def test_several_prompts_and_n(client: OpenAI) -> None:
    prompts = [PROMPT, "The dog", "A cat"]
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 5}
    alone = [client.completions.create(prompt=prompt, **options).choices[0].text for prompt in prompts]
    together = client.completions.create(prompt=prompts, n=2, **options)
    assert [choice.index for choice in together.choices] == list(range(6))
    assert [choice.text for choice in together.choices] == [text for text in alone for _ in range(2)]
    assert together.usage is not None and together.usage.completion_tokens == 30
    streamed = [""] * 6
    for chunk in client.completions.create(prompt=prompts, n=2, stream=True, **options):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in together.choices]


def test_n_samples_differ_and_repeat_with_their_seed(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "n": 4, "seed": 7, "max_tokens": 12}
    first, second = (client.completions.create(**options) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) > 1
    assert texts == [choice.text for choice in second.choices]


def test_token_ids_as_prompt(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    by_ids = client.completions.create(prompt=[[1, 300, 301], [1, 302]], echo=True, **options)
    assert len(by_ids.choices) == 2
    assert by_ids.usage is not None and by_ids.usage.prompt_tokens == 5
    single = client.completions.create(prompt=[1, 300, 301], **options)
    assert by_ids.choices[0].text.endswith(single.choices[0].text)
    assert len(by_ids.choices[0].text) > len(single.choices[0].text)


def test_echo_of_token_ids_is_their_text(server: ServerProcess) -> None:
    """Control tokens inside the prompt are no text unless asked for; the offsets hold either way."""
    body = {"prompt": [1, 403, 2, 300, 1, 301], "max_tokens": 2, "echo": True, "logprobs": 0, "temperature": 0}
    for skip in (True, False):
        choice = server.post("/v1/completions", {**body, "skip_special_tokens": skip}).body["choices"][0]
        tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
        shown = [token for token in tokens if not (skip and token in ("<s>", "</s>"))]
        assert choice["text"].strip() == "".join(shown).strip()
        for token, begin in zip(tokens, offsets, strict=True):
            if token in shown:
                assert choice["text"].startswith((token, token.removeprefix(" ")), begin), (token, begin)


def test_chat_logprobs(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 6
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert entry.bytes is not None
    joined = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content).decode()
    assert joined.strip() == (choice.message.content or "").strip()
    streamed = [
        entry
        for chunk in client.chat.completions.create(**options, logprobs=True, top_logprobs=3, stream=True)
        for entry in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])
    ]
    assert streamed == choice.logprobs.content
    chosen_only = client.chat.completions.create(**options, logprobs=True).choices[0].logprobs
    assert chosen_only is not None and chosen_only.content is not None
    assert [entry.logprob for entry in chosen_only.content] == [entry.logprob for entry in choice.logprobs.content]
    assert all(entry.top_logprobs == [] for entry in chosen_only.content)


def test_prompt_logprobs_extension(server: ServerProcess) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 2, "temperature": 0}
    reply = server.post("/v1/completions", body).body
    entries = reply["choices"][0]["prompt_logprobs"]
    assert len(entries) == reply["usage"]["prompt_tokens"]
    assert entries[0] is None
    for entry in entries[1:]:
        assert 2 <= len(entry) <= 3
        assert all({"logprob", "rank", "decoded_token"} == set(value) for value in entry.values())
    echoed = server.post("/v1/completions", {**body, "prompt_logprobs": None, "echo": True, "logprobs": 1}).body
    wanted = echoed["choices"][0]["logprobs"]["token_logprobs"][1 : len(entries)]
    assert all(any(v["logprob"] == want for v in e.values()) for e, want in zip(entries[1:], wanted, strict=True))


def test_errors_are_the_clients_own_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=PROMPT, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-none", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1000)
    assert caught.value.code == "context_length_exceeded"


def test_64_streams_at_once_answer_as_alone(server: ServerProcess, client: OpenAI) -> None:
    """Each of 64 concurrent streams gets the answer it gets alone."""
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "temperature": 0.8}
    prompts = [f"{PROMPT} {name}" for name in ("boy", "girl", "dog", "cat")]
    alone = {
        (i, seed): client.completions.create(prompt=prompt, seed=seed, **options).choices[0].text
        for i, prompt in enumerate(prompts)
        for seed in range(4)
    }
    results: dict[int, str] = {}
    together = threading.Barrier(64)

    def one(which: int) -> None:
        together.wait()
        stream = client.completions.create(prompt=prompts[which % 4], seed=which // 4 % 4, stream=True, **options)
        results[which] = "".join(chunk.choices[0].text for chunk in stream)

    threads = [threading.Thread(target=one, args=(which,)) for which in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {which: alone[which % 4, which // 4 % 4] for which in range(64)}
