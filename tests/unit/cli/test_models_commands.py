"""pull, list, rm and doctor, on a cache of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from octavo.weights.catalogue import CATALOGUE


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    entry = CATALOGUE[0]
    (tmp_path / "models" / entry.name).mkdir(parents=True)
    (tmp_path / "models" / entry.name / entry.file).write_bytes(b"not a model" * 10)
    return tmp_path / "models"


def test_list_says_what_is_here(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "smollm2-135m" in shown and "unchecked" in shown and f"cache: {cache}" in shown
    assert main(["list", "--json", "--download-dir", str(cache / "none")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["path"]) for row in rows] == [(entry.name, None) for entry in CATALOGUE]


def test_rm_frees_and_says_when_there_is_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "smollm2-135m"]) == 0
    assert "freed 110 bytes" in capsys.readouterr().out
    assert main(["rm", "smollm2-135m"]) == 2
    assert "not in the model cache" in capsys.readouterr().err


def test_hub_models_are_listed_and_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, files in (
        ("models--a--served", {"config.json": b"{}", "model.safetensors": b"12345678"}),
        ("models--a--gguf", {"m.gguf": b"GGUF"}),
        ("models--a--picture", {"config.json": b"{}"}),
        ("datasets--a--served", {"x.safetensors": b"1"}),
    ):
        repo = cache.parent / "hub" / name
        (repo / "snapshots" / "0").mkdir(parents=True)
        (repo / "blobs").mkdir()
        for number, (file, content) in enumerate(files.items()):
            (repo / "blobs" / str(number)).write_bytes(content)
            (repo / "snapshots" / "0" / file).symlink_to(repo / "blobs" / str(number))
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row["bytes"] for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {*(entry.name for entry in CATALOGUE), "a/served", "a/gguf"} and rows["a/served"] == 10
    assert main(["list"]) == 0
    assert "a/gguf" in capsys.readouterr().out
    assert main(["rm", "a/served", "a/gguf"]) == 0
    assert capsys.readouterr().out == "a/served: freed 10 bytes\na/gguf: freed 4 bytes\n"
    assert main(["rm", "a/served"]) == 2
    assert "not in the hub cache" in capsys.readouterr().err
    assert main(["list"]) == 0
    assert "a/" not in capsys.readouterr().out.partition("cache:")[0]


def test_pull_prints_where_a_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert main(["pull", str(tmp_path / "m.gguf")]) == 0
    assert capsys.readouterr().out == f"m: {tmp_path / 'm.gguf'}\n"
    assert main(["pull", "smollm9"]) == 2
    assert "Did you mean smollm2-135m?" in capsys.readouterr().err


def test_doctor_in_words_and_in_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    words = capsys.readouterr().out
    assert main(["doctor", "--json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert status == (1 if report["problems"] else 0)
    assert "portable" in report["kernels"]["supported_paths"]
    for path in report["kernels"]["supported_paths"]:
        assert path in words
    assert report["models"] == {"folder": str(cache), "cached": {"smollm2-135m": 110}}
    assert report["memory"]["total_bytes"] > 0 and report["cpu"]["cpus_allowed"] >= 1


def test_doctor_names_the_kernels_of_each_path(capsys: pytest.CaptureFixture[str]) -> None:
    """Forcing an instruction set changes the kernels that doctor names."""
    main(["doctor", "--json"])
    paths = json.loads(capsys.readouterr().out)["kernels"]["supported_paths"]
    described = {}
    for path in paths:
        main(["doctor", "--json", "--isa", path])
        described[path] = json.loads(capsys.readouterr().out)["kernels"]["float32"]
        assert described[path]["kernel_path"] == path
    for path in paths:
        assert all(described[path] != described[other] for other in paths if other != path)


def test_doctor_finds_a_path_the_cpu_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--isa", "sse9"]) == 1
    assert "sse9" in capsys.readouterr().out


def test_doctor_finds_a_cache_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["doctor", "--json", "--download-dir", str(blocked / "models")]) == 1
    assert any("cannot be written" in problem for problem in json.loads(capsys.readouterr().out)["problems"])
