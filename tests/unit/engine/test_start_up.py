"""What happens before an engine is asked to start."""

from __future__ import annotations

import gc
import time

import pytest

from octavo.engine.process_host import ProcessHost
from octavo.engine.start_up import no_collection
from support.hosts import FILES, collect, request, scripted_config, tokens
from support.paths import TESTS
from support.scripted import answer


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def test_a_process_that_was_begun_is_the_one_that_serves() -> None:
    host = ProcessHost()
    try:
        host.begin()
        time.sleep(0.2)
        assert host.pid is None, "it takes no requests yet"
        host.start(scripted_config(), FILES)
        begun = host.pid
        host.submit(request(1, [1, 9], max_tokens=5))
        assert tokens(collect(host, {(1, 0)})[1, 0]) == answer([1, 9], 101, 5)
        assert host.pid == begun
    finally:
        host.close()


def test_a_process_that_was_begun_for_nothing_ends() -> None:
    host = ProcessHost()
    host.begin()
    assert host._begun is not None
    process = host._begun._process
    host.close()
    assert process.poll() is not None


def test_no_garbage_is_looked_for_meanwhile() -> None:
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()
