"""FrontEnd: what turns text into requests, shared by `LLM` and `AsyncEngine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.engine.chat_budget import MAX_RENDER_S, PATIENT_CHARS, OutOfPatienceError, patience_s
from octavo.engine.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate
from octavo.engine.generation_config import GENERATION_CONFIG, read_generation_config, sampling_values
from octavo.engine.input_processor import InputProcessor, check_text
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ModelFileError, RequestError
from octavo.messages import EngineInfo, SamplingParams
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.files import read_text
from octavo.weights.sources import ModelFiles, open_checkpoint


class FrontEnd:
    """A model's tokenizer and chat template.

    Attributes:
        generation_config: What the model's generation_config.json holds; empty without one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        generation_config: Mapping[str, Any] | None = None,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.generation_config = generation_config or {}
        self._chat_template = chat_template
        self._tool_template = tool_template or chat_template

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> FrontEnd:
        """Read tokenizer and template of the model, or those that the configuration puts in their place.

        Raises:
            ModelError: If a file is missing or damaged, or of a kind that Octavo does not have.
        """
        checkpoint = open_checkpoint(files)
        try:
            parts = checkpoint.tokenizer_files()
        finally:
            checkpoint.close()
        if config.model.tokenizer is not None:
            parts = _other_tokenizer(parts, Path(config.model.tokenizer))
        name = "chat template"
        if config.model.chat_template is not None:
            path = Path(config.model.chat_template)
            source = read_text(path, 4 * MAX_TEMPLATE_CHARS)
            parts = msgspec.structs.replace(parts, chat_template=source, tool_template=None)
            name = path.name
        tokenizer = Tokenizer.load(parts)
        generation_config = read_generation_config(files.path) if files.kind == "huggingface" else None
        variables = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
        templates = [
            None if source is None else ChatTemplate(source, variables, file=name)
            for source in (parts.chat_template, parts.tool_template)
        ]
        return cls(tokenizer, templates[0], generation_config, templates[1])

    @property
    def template_source(self) -> str | None:
        """The chat template's text; of the one for tools where there are two, which says how calls are written."""
        return None if self._tool_template is None else self._tool_template.source

    def input_processor(self, info: EngineInfo, config: EngineConfig, *, seed: int | None = None) -> InputProcessor:
        ordered = config.scheduler.admission == "priority"
        return InputProcessor(info, self.tokenizer, seed=seed, takes_priorities=ordered)

    def default_sampling(self) -> SamplingParams:
        """What the model's generation_config.json asks for.

        Raises:
            ModelFileError: If a value cannot be.
        """
        try:
            return SamplingParams(**sampling_values(self.generation_config))
        except RequestError as error:
            why = f"is {str(error.value)[:40]}; must be {error.allowed}"
            raise ModelFileError(GENERATION_CONFIG, str(error.param), why) from None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        check_length: Callable[[int, str], None] | None = None,
        **template_kwargs: Any,
    ) -> list[int]:
        """The token ids of a conversation; see `ChatTemplate.render`.

        Control tokens come from the template only: their spellings in a user's text stay text. No begin-of-sequence
        token is added, because templates write it themselves. `check_length` (`InputProcessor.check_length`) may refuse
        the text before the work of tokenising it.

        Raises:
            RequestError: If the model has no template, or the template refuses the messages, or makes more of them than
                fits the context.
            OutOfPatienceError: If it takes longer than `chat_budget.patience_s`.
        """
        template = self._tool_template if tools else self._chat_template
        if template is None:
            raise RequestError("messages", message="this model has no chat template: send a prompt, or give a template")
        text = template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            guard=self.tokenizer.guard,
            **template_kwargs,
        )
        if check_length is not None:
            check_length(len(text), "messages")
        if len(text) > PATIENT_CHARS and patience_s.get() < MAX_RENDER_S:
            raise OutOfPatienceError
        check_text(text, "messages")
        return self.tokenizer.encode_guarded(text)


def _other_tokenizer(files: TokenizerFiles, path: Path) -> TokenizerFiles:
    """The model's files with another tokenizer.json, given itself or by its folder."""
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(path.name, "file", "there is no such tokenizer")
    return msgspec.structs.replace(files, tokenizer_json=path, gguf=None, vocabulary=None, added=())
