"""LlamaIndex: OpenAILike, chat and completions, whole and streamed."""

from __future__ import annotations

import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

URL, MODEL = os.environ["OCTAVO_URL"] + "/v1", os.environ["OCTAVO_MODEL"]

for is_chat in (True, False):
    llm = OpenAILike(
        model=MODEL,
        api_base=URL,
        api_key="sk-any",
        is_chat_model=is_chat,
        temperature=0,
        max_tokens=8,
        context_window=256,
    )
    text = llm.complete("Once upon a time").text
    assert text
    assert "".join(piece.delta or "" for piece in llm.stream_complete("Once upon a time")) == text
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Name a river.")]
    answer = llm.chat(messages).message.content
    assert answer
    assert "".join(piece.delta or "" for piece in llm.stream_chat(messages)) == answer
