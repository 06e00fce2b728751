"""LangChain: ChatOpenAI and OpenAI, whole, streamed, in batches and asynchronous."""

from __future__ import annotations

import asyncio
import os

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

URL, MODEL = os.environ["OCTAVO_URL"] + "/v1", os.environ["OCTAVO_MODEL"]

chat = ChatOpenAI(base_url=URL, api_key="sk-any", model=MODEL, temperature=0, max_tokens=8, stream_usage=True)
messages = [SystemMessage("Be brief."), HumanMessage("Name a river.")]
answer = chat.invoke(messages)
assert answer.content and answer.usage_metadata["output_tokens"] <= 8
assert answer.response_metadata["finish_reason"] in ("stop", "length")
pieces = list(chat.stream(messages))
assert "".join(piece.content for piece in pieces) == answer.content
assert (
    sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces)
    == answer.usage_metadata["output_tokens"]
)
assert len(chat.batch([messages] * 3)) == 3
chain = ChatPromptTemplate.from_messages([("user", "Name a {thing}.")]) | chat
assert chain.invoke({"thing": "lake"}).content


async def main() -> None:
    assert (await chat.ainvoke(messages)).content == answer.content
    assert "".join([piece.content async for piece in chat.astream(messages)]) == answer.content


asyncio.run(main())
logged = chat.bind(logprobs=True, top_logprobs=2).invoke(messages)
assert len(logged.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
assert OpenAI(base_url=URL, api_key="sk-any", model=MODEL, max_tokens=5).invoke("Once upon a time")
