"""What a user may call a model, and what each name becomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models as tiny
from limits import refused

import octavo.measure.shapes  # noqa: F401 - imported late, when there may be no right to
from octavo.cli.inspect_model import inspect_model
from octavo.cli.plan_model import model_shape
from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelError, ModelFileError
from octavo.weights import catalogue, model_cache, sources
from octavo.weights.gguf_checkpoint import GGUFCheckpoint
from octavo.weights.huggingface import HFCheckpoint


def test_a_folder_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.hf_folder(tmp_path / "some-model")
    file = tiny.gguf_file(tmp_path / "Other.Q4_1.gguf", tiny.weights())
    monkeypatch.chdir(tmp_path)
    for name in (str(folder), "some-model", "./some-model", "some-model/"):
        found = sources.resolve(name)
        assert (found.path.resolve(), found.kind, found.name) == (folder, "huggingface", "some-model")
        assert isinstance(sources.open_checkpoint(found), HFCheckpoint)
    for name in (str(file), "Other.Q4_1.gguf"):
        found = sources.resolve(name)
        assert (found.path.resolve(), found.kind, found.name) == (file, "gguf", "Other.Q4_1")
        assert isinstance(sources.open_checkpoint(found), GGUFCheckpoint)
    monkeypatch.chdir(folder)
    assert sources.resolve(".").name == "some-model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.resolve("~/some-model").path == folder


def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    folder = tiny.hf_folder(tmp_path / "locked")
    folder.chmod(0)
    before, config = os.geteuid(), EngineConfig.of(model=str(folder))
    try:
        if before == 0:  # to whom nothing is locked
            os.seteuid(65534)
        asked = [lambda: sources.resolve(str(folder)), lambda: model_shape(str(folder)), lambda: inspect_model(config)]
        for ask in asked:
            refused(ask, "locked: file: permission denied", kind=ModelFileError)
    finally:
        os.seteuid(before)
        folder.chmod(0o700)


def test_a_catalogue_name_comes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.hf_folder(tmp_path / "smollm2")
    fetched = tmp_path / "fetched.gguf"
    monkeypatch.setattr(model_cache, "ensure", lambda entry, *_: fetched)
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "SmolLM2-135M", "smollm2-135m-instruct"):
        found = sources.resolve(name)
        assert (found.path, found.kind, found.name) == (fetched, "gguf", "smollm2-135m")
    assert sources.resolve("./smollm2").path.resolve() == folder


def test_a_folder_comes_before_a_hub_id_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.hf_folder(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert sources.resolve("owner/model").path.resolve() == folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", ["empty"]),
        ("a\0b", ["NUL"]),
        ("smolm2-135m", ["no model 'smolm2-135m'", "Did you mean smollm2-135m?", "hub id"]),
        ("gpt2", ["catalogue name (smollm2-135m)", "owner/name"]),
        ("./nothing", ["there is no file or folder ./nothing"]),
        ("missing.gguf", ["there is no file or folder missing.gguf"]),
        ("/no/such/place", ["there is no file or folder /no/such/place"]),
        ("../" * 500 + "x", ["there is no file or folder ../../"]),
        ("a/b/c/d", ["no model 'a/b/c/d'"]),
        ("owner/na me", ["no model"]),
        ("https://example.org/model", ["no model"]),
        ("x" * 5000, ["no model"]),
    ],
)
def test_names_that_are_none_are_refused_with_a_hint(name: str, words: list[str]) -> None:
    error = refused(lambda: sources.resolve(name), *words, kind=ModelError)
    assert len(str(error)) < 500


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    for name, word in [
        ("pytorch_model.bin", "pickle"),
        ("model.PT", "pickle"),
        ("model.safetensors", "give the folder"),
        ("notes.txt", "neither a .gguf file nor"),
    ]:
        (tmp_path / name).write_bytes(b"x")
        refused(lambda name=name: sources.resolve(str(tmp_path / name)), name, word, kind=ModelFileError)
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(lambda: sources.resolve(str(empty)), "empty: folder: holds no config.json", kind=ModelFileError)
    (empty / "a.gguf").touch()
    refused(lambda: sources.resolve(str(empty)), "give the file itself, for example a.gguf", kind=ModelFileError)


def test_only_hub_models_have_revisions(tmp_path: Path) -> None:
    for name in ("smollm2-135m", str(tiny.hf_folder(tmp_path)), "nonsense"):
        with pytest.raises(ConfigError, match="revision = 'v1'"):
            sources.resolve(name, revision="v1")


def test_near_names() -> None:
    assert catalogue.near("SmolLM-135M") == ["smollm2-135m"]
    assert catalogue.near("zzz") == []


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _hub_cache(home: Path) -> None:
    """A cache as the hub library leaves it: one snapshot that refs/main and a tag name, files linked to blobs."""
    repo = home / "hub" / "models--octo--tiny"
    snapshot = repo / "snapshots" / COMMIT
    made = tiny.hf_folder(home / "made", shards=2)
    tiny.gguf_file(made / "tiny.Q8_0.gguf", tiny.weights(), type_name="Q8_0")
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(made.iterdir()):
        file.rename(repo / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    (repo / "refs").mkdir()
    for ref in ("main", "v1"):
        (repo / "refs" / ref).write_text(COMMIT)


HUB_PROGRAM = """
import json, sys
from octavo.errors import ModelError
from octavo.weights import sources
out = []
for name, revision in json.loads(sys.argv[1]):
    try:
        files = sources.resolve(name, revision=revision)
        checkpoint = sources.open_checkpoint(files)
        out.append([files.kind, files.name, len(list(checkpoint.names())), checkpoint.config["vocab_size"]])
    except ModelError as error:
        out.append(str(error))
print(json.dumps(out))
"""


def _ask_hub(home: Path, names: list[tuple[str, str | None]], **environment: str) -> list[object]:
    """Resolve in a process of its own: the hub library reads its environment when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", HUB_PROGRAM, json.dumps(names)],
        env={k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"HF_HOME": str(home)} | environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    answers: list[object] = json.loads(done.stdout)
    return answers


def test_hub_ids_from_a_local_cache(tmp_path: Path) -> None:
    _hub_cache(tmp_path)
    answers = _ask_hub(
        tmp_path,
        [
            ("octo/tiny", None),
            ("octo/tiny", "v1"),
            ("octo/tiny/tiny.Q8_0.gguf", None),
            ("octo/tiny", "v2"),
            ("octo/absent", None),
            ("HuggingFaceTB/SmolLM2-135M", None),
            ("octo/tiny/other.gguf", None),
        ],
        HF_HUB_OFFLINE="1",
    )
    folder = ["huggingface", "octo/tiny", 20, tiny.VOCAB]
    assert answers[:3] == [folder, folder, ["gguf", "octo/tiny/tiny.Q8_0.gguf", 20, tiny.VOCAB]]
    for answer in answers[3:]:
        assert isinstance(answer, str)
        assert "HF_HUB_OFFLINE forbids" in answer
    assert answers[4] == "hub model octo/absent: not in the local hub cache, and HF_HUB_OFFLINE forbids fetching it."
    assert "Did you mean smollm2-135m?" in str(answers[5])


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    """Port 9 of this machine answers nobody."""
    answers = _ask_hub(
        tmp_path, [("octo/absent", None)], HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_DISABLE_TELEMETRY="1"
    )
    assert answers == ["hub model octo/absent: not in the local hub cache, and the hub cannot be reached."]
