"""Tokenizers that the engine's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.engine.host import Host, make_host
from octavo.engine.tokenizer import Tokenizer
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.sources import open_checkpoint, resolve
from support.hosts import FILES, scripted_config
from support.paths import TESTS, TINYSTORIES


@pytest.fixture(scope="session")
def tinystories() -> Tokenizer:
    """SentencePiece: byte fallback, a space before every text, a begin-of-sequence token."""
    files = TokenizerFiles(tokenizer_json=TINYSTORIES / "tokenizer.json", bos_token="<s>", eos_token="</s>")
    return Tokenizer.load(files)


@pytest.fixture(scope="session")
def smollm2_files() -> TokenizerFiles:
    """Of the default model, a GGUF file."""
    checkpoint = open_checkpoint(resolve("smollm2-135m"))
    try:
        return checkpoint.tokenizer_files()
    finally:
        checkpoint.close()


@pytest.fixture(scope="session")
def smollm2(smollm2_files: TokenizerFiles) -> Tokenizer:
    return Tokenizer.load(smollm2_files)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Host]]:
    """Starts hosts with a scripted executor; they are closed when the test ends."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    hosts: list[Host] = []

    def make(kind: str, executor: str = "ScriptedExecutor", **settings: Any) -> Host:
        host = make_host(kind)
        hosts.append(host)
        host.start(scripted_config(executor, **settings), FILES)
        return host

    yield make
    for host in hosts:
        host.close()
