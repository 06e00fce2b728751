"""One server per kind of model, shared by all tests of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from openai import OpenAI

from support.server_process import ServerProcess


@pytest.fixture(scope="session")
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """The tiny model, with room for 64 sequences."""
    return start_server("--num-blocks", "600")


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _server_stays_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test on the shared server: same process, healthy, and no block held."""
    yield
    if "server" in request.fixturenames:
        server: ServerProcess = request.getfixturevalue("server")
        assert server.process.poll() is None, server.log.read_text()
        assert server.get("/health").status == 200
        server.wait_metric("octavo:kv_blocks", 0, 2.0, state="held")
