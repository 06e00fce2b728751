"""The README's examples run as printed, on the model they name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import ServerProcess

README = (Path(__file__).parents[2] / "README.md").read_text()

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess("smollm2-135m", "--num-blocks", "600", log=tmp_path_factory.mktemp("log") / "log")
    try:
        yield process.wait_ready()
    finally:
        process.stop()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"), ids=["openai", "llm"])
def test_python(code: str, server: ServerProcess) -> None:
    code = code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 10


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: ServerProcess) -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("curl")]
    assert lines
    for line in lines:
        line = line.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        raw = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=100, check=True).stdout
        assert raw.rstrip().endswith("data: [DONE]") and '"content":' in raw
