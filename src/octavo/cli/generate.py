"""`octavo generate`: complete a prompt given as an argument or on standard input, or a file of prompts.

One prompt streams its text. Several run together, and each gives one line of JSON, in the order of the prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, is_set, set_flag
from octavo.cli.sampling_flags import add_sampling_flags, sampling_fields
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.cli.answers import Local
    from octavo.messages import SamplingParams

DEFAULTS = {"max_tokens": 256}

_TOGETHER = 256
"""Prompts handed to the engine at once; the rest wait here, where they cost nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the prompt (default: standard input, whole)")
    parser.add_argument(
        "--file", metavar="FILE", help='prompts, one per line, or JSONL with "prompt" in each; - is standard input'
    )
    parser.add_argument("--chat", action="store_true", help="put each prompt into the model's chat template")
    parser.add_argument("--json", action="store_true", help="print lines of JSON for a single prompt too")
    add_sampling_flags(parser, DEFAULTS, batch=True)
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    from octavo.messages import SamplingParams

    params = SamplingParams(**sampling_fields(args, DEFAULTS))
    prompts = read_prompts(args.text, args.file)
    if not is_set(args, "engine-host"):
        set_flag(args, "engine-host", "thread")
    config = engine_config(args, model=args.model)
    single = len(prompts) == 1 and args.file is None and not args.json and params.n == 1
    return asyncio.run(_generate(config, prompts, params, chat=args.chat, single=single))


def read_prompts(text: str | None, file: str | None) -> list[str]:
    """The prompts that the arguments name.

    Raises:
        ConfigError: When both or neither name any, or a line of JSONL has no prompt.
    """
    if file is not None:
        if text is not None:
            raise ConfigError("file", file, "left out when TEXT is given")
        lines = (sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")).splitlines()
        prompts = [_prompt_of(line, file, number) for number, line in enumerate(lines, 1) if line.strip()]
        if not prompts:
            raise ConfigError("file", file, "a file with at least one prompt")
        return prompts
    if text is None:
        text = sys.stdin.read() if not sys.stdin.isatty() else ""
    if not text:
        raise ConfigError("TEXT", text, "given, as an argument, on standard input or by --file")
    return [text]


def _prompt_of(line: str, file: str, number: int) -> str:
    """A line is JSONL when it is an object; anything else is the prompt itself."""
    import msgspec

    if not line.lstrip().startswith("{"):
        return line
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line
    prompt = value.get("prompt")
    if not isinstance(prompt, str):
        raise ConfigError("file", f"line {number} of {file}", 'an object with a string "prompt"')
    return prompt


async def _generate(config: Any, prompts: list[str], params: SamplingParams, *, chat: bool, single: bool) -> int:
    from octavo.cli.answers import local

    source = await local(config)
    try:
        if single:
            await _print_stream(source, prompts[0], params, chat)
            return 0
        failed = False
        async for line, ok in _lines(source, prompts, params, chat):
            print(line, flush=True)
            failed = failed or not ok
        return 1 if failed else 0
    finally:
        await source.close()


def _rendered(source: Local, prompt: str, chat: bool) -> Any:
    if not chat:
        return prompt
    return source.engine.render_chat([{"role": "user", "content": prompt}], add_generation_prompt=True)


async def _print_stream(source: Local, prompt: str, params: SamplingParams, chat: bool) -> None:
    async with contextlib.aclosing(source.complete(_rendered(source, prompt, chat), params)) as deltas:
        async for delta in deltas:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    print()


async def _lines(
    source: Local, prompts: list[str], params: SamplingParams, chat: bool
) -> AsyncIterator[tuple[str, bool]]:
    """(line of JSON, whether it went well) for each prompt, in order."""
    gate = asyncio.Semaphore(_TOGETHER)

    async def work(index: int, prompt: str) -> tuple[str, bool]:
        async with gate:
            return await _line(source, index, prompt, params, chat)

    tasks = [asyncio.create_task(work(index, prompt)) for index, prompt in enumerate(prompts)]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _line(source: Local, index: int, prompt: str, params: SamplingParams, chat: bool) -> tuple[str, bool]:
    """A prompt that fails gets a line that says so; the others go on."""
    import json

    from octavo.errors import RequestError

    answers: list[dict[str, Any]] = [{"text": "", "finish_reason": None, "num_tokens": 0} for _ in range(params.n)]
    try:
        async with contextlib.aclosing(source.complete(_rendered(source, prompt, chat), params)) as deltas:
            async for delta in deltas:
                answer = answers[delta.index]
                answer["text"] += delta.text
                answer["num_tokens"] += len(delta.token_ids)
                answer["finish_reason"] = delta.finish_reason or answer["finish_reason"]
                if delta.score is not None:
                    answer["score"] = delta.score
    except RequestError as error:
        return json.dumps({"index": index, "prompt": prompt, "error": str(error)}, ensure_ascii=False), False
    return json.dumps({"index": index, "prompt": prompt, "answers": answers}, ensure_ascii=False), True
