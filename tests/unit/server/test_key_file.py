"""The key file: keys, hashed or not, and the tenants they stand for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from octavo.config import HTTPConfig
from octavo.errors import ConfigError
from octavo.server.auth import Access
from octavo.server.key_file import Caller, read_key_file
from octavo.server.openai.errors import HTTPProblem

HASHED = hashlib.sha256(b"sk-bob").hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    bob = f"bob  sha256:{HASHED.upper()}  max_requests=4"
    path.write_text(f"# who\n\nalice sk-alice\nalice\tsk-alice-2 # laptop\n{bob}\n")
    return path


def test_each_key_has_its_tenant(file: Path) -> None:
    access = Access(HTTPConfig(api_key_file=str(file), api_key=("sk-old",)))
    given = {"sk-alice": "alice", "sk-alice-2": "alice", "sk-bob": "bob", "sk-old": "default"}
    for key, tenant in given.items():
        assert access.check("/v1/models", f"Bearer {key}".encode()).tenant == tenant
    assert access.check("/v1/models", b"Bearer sk-bob") == Caller("bob", 4)


@pytest.mark.parametrize("key", ["", "sk-bo", "sk-bobb", f"sha256:{HASHED}", HASHED, "alice"])
def test_nothing_else_opens(file: Path, key: str) -> None:
    with pytest.raises(HTTPProblem) as caught:
        Access(HTTPConfig(api_key_file=str(file))).check("/v1/models", f"Bearer {key}".encode())
    assert caught.value.reply.status == 401


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "sk-secret",
        "alice sk-secret more",
        "alice sk-secret max_requests=0",
        "alice sk-secret max_requests=1 x",
        "(public) sk-secret",
        "a/b sk-secret",
        "alice sha256:sk-secret",
        f"bob sha256:{HASHED}0",
        "x" * 65 + " sk-secret",
    ],
)
def test_a_bad_line_is_named_but_not_shown(line: str, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)  # an error shortens what it repeats, and must not lose the line
    folder.mkdir()
    path = folder / "keys"
    path.write_text(f"alice sk-good\n{line}\n")
    with pytest.raises(ConfigError, match="'line 2 of /") as caught:
        read_key_file(str(path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "a sk-1\nb sk-1\n"])
def test_an_empty_or_ambiguous_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match="api_key_file"):
        read_key_file(str(path))


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a file to read"):
        read_key_file(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"a \xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_key_file(str(tmp_path / "binary"))
