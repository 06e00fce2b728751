"""What a request's prompts cost the server's loop before they run."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.http_config import HTTPConfig
from octavo.messages import SamplingParams
from octavo.server.openai.generation import LONG_PROMPT_CHARS, prepare
from octavo.server.openai.protocol import CompletionRequest

FOUND = ((5,), (6, 7))


@pytest.mark.parametrize(
    ("prompts", "bad_words", "in_a_thread"),
    [
        (["a", "b"], ("c",), False),
        (["a" * (LONG_PROMPT_CHARS // 2), "b" * (LONG_PROMPT_CHARS // 2 + 1)], (), True),
        (["a", "b"], ("c" * 1000, "d" * (LONG_PROMPT_CHARS // 2 - 1000)), True),
    ],
)
def test_long_texts_are_tokenized_off_the_loop(
    prompts: list[str], bad_words: tuple[str, ...], in_a_thread: bool
) -> None:
    """Bad words count twice, as they are tokenized twice, and once for all prompts."""
    threads: list[threading.Thread] = []
    known: list[Any] = []

    def prepare_one(prompt: str, params: SamplingParams, *, bad_token_ids: Any, **_: Any) -> Any:
        threads.append(threading.current_thread())
        known.append(bad_token_ids)
        return SimpleNamespace(prompt_token_ids=[1], request=SimpleNamespace(bad_token_ids=FOUND))

    engine = SimpleNamespace(prepare=prepare_one, check_room=lambda requests, tokens: None)
    context: Any = SimpleNamespace(engine=engine, http=HTTPConfig())
    named: list[tuple[str, str | list[int]]] = [(f"prompt[{i}]", prompt) for i, prompt in enumerate(prompts)]
    request = CompletionRequest(model="m", prompt=prompts)
    asyncio.run(prepare(context, named, SamplingParams(bad_words=bad_words), request))
    assert [thread is not threading.main_thread() for thread in threads] == [in_a_thread] * len(prompts)
    assert known == [None, FOUND]
