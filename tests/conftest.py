"""Fixtures shared by the suites that need a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support.server_process import TINY_MODEL, TINY_TEMPLATE, ServerProcess

START = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[START]:
    """Start further servers: `start_server("--flag", "value", model=..., env=..., under=...)`. All end with the run."""
    started: list[ServerProcess] = []

    def start(
        *flags: str,
        model: Path | str = TINY_MODEL,
        ready: bool = True,
        env: dict[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> ServerProcess:
        log = tmp_path_factory.mktemp("server") / "log"
        if model == TINY_MODEL:
            flags = ("--chat-template", str(TINY_TEMPLATE), "--served-model-name", "tiny", *flags)
        server = ServerProcess(model, *flags, env=env, under=under, log=log)
        started.append(server)
        return server.wait_ready() if ready else server

    yield start
    for server in started:
        server.stop()
