"""The chat page's files: all served, none from elsewhere, Markdown checked by its own tests."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.config import HTTPConfig
from octavo.server.auth import Access
from octavo.server.chat_page import ChatPage
from octavo.server.openai.errors import HTTPProblem
from octavo.server.page_files import PAGE_FILES

FOLDER = Path(octavo.__file__).parent / "server" / "page"
TESTS = Path(__file__).parents[2]
SOURCES = {path.name: path.read_text() for path in FOLDER.iterdir()}


def get(path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    asyncio.run(ChatPage()(scope, lambda: None, send))  # type: ignore[arg-type, return-value]
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, sent[1]["body"]


def test_every_file_is_served_under_a_policy() -> None:
    assert {name for name, _ in PAGE_FILES.values()} == set(SOURCES)
    for path, (name, kind) in PAGE_FILES.items():
        status, headers, body = get(path)
        assert (status, headers["content-type"], body.decode()) == (200, kind, SOURCES[name])
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert get(path, (b"if-none-match", headers["etag"].encode()))[::2] == (304, b"")
        assert get(path, method="HEAD")[2] == b""


def test_nothing_comes_from_elsewhere() -> None:
    for name, text in SOURCES.items():
        links = re.findall(r"""(?:src|href)=["']([^"']+)["']|(?:from|import\() ?["']([^"']+)["']|url\(([^)]+)""", text)
        assert all("".join(link).startswith(("/chat/", "#")) for link in links), (name, links)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
    assert sum(map(len, SOURCES.values())) < 60_000, "small enough to read"


def test_without_the_page_nothing_is_open() -> None:
    for path in PAGE_FILES:
        Access(HTTPConfig(api_key=("k",))).check(path, None)
        with pytest.raises(HTTPProblem):
            Access(HTTPConfig(api_key=("k",), chat_page=False)).check(path, None)


@pytest.mark.skipif(shutil.which("node") is None, reason="the page's own tests need node")
def test_markdown() -> None:
    done = subprocess.run(["node", "--test", str(TESTS / "page" / "markdown.test.mjs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
