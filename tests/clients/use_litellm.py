"""LiteLLM: completions, chat, streams and errors, as `hosted_vllm/` and as `openai/`."""

from __future__ import annotations

import os

import litellm

URL, MODEL = os.environ["OCTAVO_URL"] + "/v1", os.environ["OCTAVO_MODEL"]
MESSAGES = [{"role": "user", "content": "Name a river."}]

for provider in ("hosted_vllm", "openai"):
    common = {"model": f"{provider}/{MODEL}", "api_base": URL, "api_key": "sk-any", "max_tokens": 8, "temperature": 0}
    whole = litellm.completion(messages=MESSAGES, seed=1, **common)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens <= 8, whole
    chunks = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **common))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert any(getattr(chunk, "usage", None) for chunk in chunks)
    try:
        litellm.completion(messages=MESSAGES, **{**common, "temperature": -1})
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a temperature below 0 was taken")

salted = litellm.completion(
    model=f"hosted_vllm/{MODEL}",
    api_base=URL,
    messages=MESSAGES,
    max_tokens=4,
    extra_body={"cache_salt": "a", "top_k": 1},
)
assert salted.choices[0].message.content is not None
plain = litellm.text_completion(
    model=f"text-completion-openai/{MODEL}", api_base=URL, api_key="sk-any", prompt="Once upon a time", max_tokens=5
)
assert plain.choices[0].text
