"""LLM: the engine for scripts and notebooks. In order, offline, in the caller's own thread."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType, UnionType
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.engine.build import find_files
from octavo.engine.dispatch import Dispatcher, Mailbox
from octavo.engine.front_end import FrontEnd
from octavo.engine.host import make_host
from octavo.engine.input_processor import Prepared
from octavo.engine.outputs import RequestOutput, TextDelta
from octavo.engine.publications import check_unpublished, find_published
from octavo.engine.questions import (
    Audit,
    GetKVBlocks,
    GetKVStats,
    GetPublished,
    ResetPrefixCache,
    Withdraw,
    check_page,
)
from octavo.engine.request_output import new_output, update_output
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ConfigError, EngineDeadError, RequestError
from octavo.messages import EngineInfo, EngineStats, KVBlock, KVStats, PublishedPrefix, SamplingParams

Prompt = str | list[int]
Conversation = list[dict[str, Any]]

_ANY_LOGPROBS = 1 << 30
"""The limit on logprobs protects servers from strangers; whoever holds an LLM may ask for all of them."""


class LLM:
    """A loaded model.

        with LLM("smollm2-135m") as llm:
            print(llm.generate("Once upon a time", SamplingParams(max_tokens=20))[0].outputs[0].text)

    Args:
        model: Catalogue name, Hugging Face folder, .gguf file or hub id.
        seed: Fixes the seeds of requests that bring none, in the order in which they are made.
        settings: Fields of `EngineConfig`'s groups by their flat names (`tokenizer`, `dtype`, `max_model_len`,
            `block_size`, ...), or their aliases (`gpu_memory_utilization`). The engine runs in the caller's thread
            unless `host` says "thread" or "process".

    Raises:
        ConfigError: For a setting that does not exist or is out of range.
        ModelError: If the model cannot be loaded.
    """

    def __init__(self, model: str = "smollm2-135m", *, seed: int | None = None, **settings: Any) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ConfigError("seed", seed, "an integer or None")
        self.config = EngineConfig.of(**{"host": "inline", **_by_field_name(settings), "model": model})
        files = find_files(self.config)
        self._host = make_host(self.config.execution.host)
        try:
            with ThreadPoolExecutor(1) as beside:
                front_end = beside.submit(FrontEnd.load, self.config, files)
                self.info: EngineInfo = self._host.start(self.config, files)
                self._front_end = front_end.result()
        except BaseException:
            self._host.close()
            raise
        self.tokenizer: Tokenizer = self._front_end.tokenizer
        self._input = self._front_end.input_processor(self.info, self.config, seed=seed)
        self._dispatcher = Dispatcher(self._host, self.tokenizer)

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, batched together; results are in the order of the prompts.

        Args:
            prompts: One prompt or several; a prompt is text or a list of token ids.
            sampling_params: One for all, or one for each. The default is `SamplingParams()`: 16 tokens.
            progress: Show a progress bar.
            priority: One for all, or one for each.
            cache_salt: Share cached KV only with prompts that bring the same text. One for all, or one for each.

        Raises:
            RequestError: If any of them cannot be served; then none is run.
        """
        several = _as_prompts(prompts)
        params = _for_each(sampling_params or SamplingParams(), len(several), SamplingParams, "sampling_params")
        priorities = _for_each(priority, len(several), int, "priority")
        salts = _for_each(cache_salt, len(several), str | None, "cache_salt")
        prepared = [
            self._input.prepare(
                prompt, p, param=f"prompts[{i}]", priority=first, cache_salt=salt, max_logprobs=_ANY_LOGPROBS
            )
            for i, (prompt, p, first, salt) in enumerate(zip(several, params, priorities, salts, strict=True))
        ]
        return self._run(prepared, progress)

    def get_default_sampling_params(self) -> SamplingParams:
        """How the makers of the model would have it sampled, by its generation_config.json; `SamplingParams()` where it
        says nothing. Nothing takes them unless they are passed.

        Raises:
            ModelFileError: If a value in the file cannot be.
        """
        return self._front_end.default_sampling()

    def beam_search(
        self,
        prompts: Prompt | list[str] | list[list[int]],
        *,
        beam_width: int,
        max_tokens: int | None = 16,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        ignore_eos: bool = False,
        progress: bool = False,
        cache_salt: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Search for the likeliest answers to prompts, as transformers' beam search does.

        Args:
            prompts: As for `generate`.
            beam_width: Answers kept at each step, and returned.
            max_tokens: Longest answer, in tokens.
            length_penalty: Exponent of the answer's length by which its sum of logprobs is divided.
            early_stopping: When the search ends; see `SamplingParams.early_stopping`.
            ignore_eos: Search on after the end of the text.

        Returns:
            Per prompt all `beam_width` answers, the best first, each with its `score`.

        Raises:
            RequestError: If any of them cannot be served; then none is run.
        """
        if beam_width is None:
            raise RequestError("beam_width", beam_width, "an integer from 1 to 1024")
        params = SamplingParams(
            beam_width=beam_width,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            ignore_eos=ignore_eos,
        )
        params = msgspec.structs.replace(params, n=beam_width)
        return self.generate(prompts, params, progress=progress, cache_salt=cache_salt)

    def chat(
        self,
        messages: Conversation | list[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
        cache_salt: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, by the model's chat template.

        Raises:
            RequestError: If a conversation cannot be rendered or served; then none is run.
        """
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        prompts = [
            self._front_end.render_chat(
                conversation,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                check_length=self._input.check_length,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, progress=progress, cache_salt=cache_salt)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[TextDelta]:
        """Answer one prompt piece by piece. Leaving the loop early gives up the rest.

        Beams come at the end, each in one piece.

        Raises:
            RequestError: If it cannot be served; `best_of` above `n` cannot, since the best are known at the end.
        """
        if params is not None and (params.best_of or 0) > params.n:
            raise RequestError("best_of", params.best_of, f"equal to n ({params.n}) in a stream")
        prepared = self._input.prepare(prompt, params or SamplingParams(), max_logprobs=_ANY_LOGPROBS)
        return self._stream(prepared)

    def _stream(self, prepared: Prepared) -> Iterator[TextDelta]:
        mailbox = self._dispatcher.open(prepared, _nobody_waits)
        try:
            while True:
                while (delta := mailbox.take()) is not None:
                    yield delta
                if mailbox.finished:
                    return
                self._pump()
        finally:
            self._dispatcher.close(mailbox)

    def _run(self, prepared: list[Prepared], progress: bool) -> list[RequestOutput]:
        outputs = {p.request_id: new_output(p) for p in prepared}
        mailboxes: list[Mailbox] = []
        try:
            mailboxes += [self._dispatcher.open(p, _nobody_waits) for p in prepared]
            with _progress_bar(len(prepared), progress) as advance:
                waiting = list(mailboxes)
                while waiting:
                    self._pump()
                    for mailbox in waiting:
                        while (delta := mailbox.take()) is not None:
                            update_output(outputs[mailbox.prepared.request_id], delta)
                    left = [m for m in waiting if not outputs[m.prepared.request_id].finished]
                    advance(len(waiting) - len(left))
                    waiting = left
        finally:
            for mailbox in mailboxes:
                self._dispatcher.close(mailbox)
        return list(outputs.values())

    def _pump(self) -> None:
        """Wait for one batch and hand it out."""
        try:
            batch = self._host.next_batch()
            if batch is None:
                raise EngineDeadError("the engine was closed")
            self._dispatcher.deliver(batch)
        except EngineDeadError as error:
            self._dispatcher.fail(error)

    def stats(self) -> EngineStats:
        """The engine's state as last reported."""
        return self._host.stats()

    def audit(self, repair: bool = False) -> list[str]:
        """Broken invariants of the block memory, one sentence each. With `repair` they are mended too."""
        return self._host.ask(Audit(repair))

    def kv_stats(self) -> KVStats:
        """Where every KV block is, in all and by tenant."""
        return self._host.ask(GetKVStats())

    def kv_blocks(self, first: int = 1, count: int = 1000) -> list[KVBlock]:
        """At most `count` blocks, from the id `first` on. Block 0 holds nothing and is not told of."""
        check_page(first, count)
        return self._host.ask(GetKVBlocks(first, count))

    def reset_prefix_cache(self, tenant: str | None = None) -> int:
        """Forget the cached content of one tenant, or of all; what is held or published stays. Returns how many blocks
        that freed."""
        return self._host.ask(ResetPrefixCache(tenant))

    def publish(self, name: str, prompt: Prompt) -> PublishedPrefix:
        """Compute a prompt and keep its whole blocks, for every tenant, until `withdraw(name)`.

        Raises:
            RequestError: If the name is taken, or the prompt fills no block or cannot be served.
        """
        check_unpublished(name, self.published())
        self._run([self._input.prepare_publication(name, prompt)], progress=False)
        return find_published(name, self.published())

    def withdraw(self, name: str) -> bool:
        """Let go of a published prefix; whether there was one of this name."""
        return self._host.ask(Withdraw(name))

    def published(self) -> list[PublishedPrefix]:
        """The published prefixes."""
        return self._host.ask(GetPublished())

    def close(self) -> None:
        """Stop the engine and free its memory. Repeatable."""
        self._host.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _nobody_waits() -> None:
    """Whoever reads a mailbox here has pumped the engine itself."""


@contextlib.contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of requests just finished."""
    if not shown:
        yield lambda count: None
        return
    import rich.progress

    with rich.progress.Progress(transient=True) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.advance(task, count)


def _as_prompts(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str) or (isinstance(prompts, list | tuple) and prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, list | tuple):
        raise RequestError("prompts", prompts, "text, a list of token ids, or a list of those")
    return list(prompts)


def _for_each(given: Any, count: int, kind: type | UnionType, name: str) -> list[Any]:
    if isinstance(given, kind):
        return [given] * count
    if len(given) != count:
        raise RequestError(name, message=f"{name} has {len(given)} entries for {count} prompts")
    return list(given)


def _by_field_name(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with aliases replaced by the names of the fields."""
    aliases: dict[str, str] = {}
    for group in dataclasses.fields(EngineConfig):
        kind: Any = group.default_factory
        for field in dataclasses.fields(kind):
            for alias in field.metadata.get("aliases", ()):
                aliases[alias.replace("-", "_")] = field.name
    return {aliases.get(name, name): value for name, value in settings.items()}
