"""From what a user calls a model to files on this machine.

`resolve` tries, in this order:

1. a catalogue name or alias, in any case of letters (a folder of the same name is meant by `./NAME`);
2. a path that exists, or that can only be one (it begins with `.`, `/` or `~`, or ends in `.gguf`);
3. a hub id, `owner/name`, or one GGUF file of a hub repository, `owner/name/file.gguf`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import ModelConfig
from octavo.errors import ConfigError, ModelError, ModelFileError
from octavo.weights import catalogue, model_cache
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.config_check import check_config
from octavo.weights.files import fingerprint, is_there, os_error
from octavo.weights.gguf_checkpoint import GGUFCheckpoint
from octavo.weights.huggingface import CONFIG, HFCheckpoint
from octavo.weights.model_cache import ShowProgress
from octavo.weights.progress import progress_bar
from octavo.weights.shards import ADAPTER, OTHERS, PICKLES
from octavo.weights.tokenizer_files import TOKENIZER_FILES

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:/([\w./ -]{1,200}\.gguf))?")
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
)
"""What is wanted of a hub repository: nothing that could be run."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine."""

    path: Path
    kind: str
    """"huggingface" (a folder) or "gguf" (a file)."""
    name: str
    """What to call it: the catalogue name, the hub id, or the name of the folder or file."""
    overrides: dict[str, Any] = {}
    """Keys of the config that the user gave other values."""

    def fingerprint(self, checkpoint: Checkpoint) -> str:
        """Of the weights, and of what is done with them otherwise than their config says."""
        found = checkpoint.fingerprint()
        if not self.overrides:
            return found
        return fingerprint([found.encode(), msgspec.json.encode(self.overrides, order="deterministic")], [])


def find(model: ModelConfig) -> ModelFiles:
    """`resolve` for the settings of an engine."""
    files = resolve(model.model, revision=model.revision, download_dir=model.download_dir)
    return msgspec.structs.replace(files, overrides=model.overrides)


def resolve(
    model: str,
    *,
    revision: str | None = None,
    download_dir: str | Path | None = None,
    progress: ShowProgress = progress_bar,
) -> ModelFiles:
    """Find `model`, fetching it if it is a name of the catalogue or the hub and not here yet.

    Args:
        model: See the top of this file.
        revision: Branch, tag or commit; for hub models.
        download_dir: Where models are kept, instead of Octavo's cache or the hub's own.
        progress: How to show a download from the catalogue; the hub library shows its own.

    Raises:
        ModelError: If there is no such model, or it cannot be fetched.
        ModelFileError: If the path is not a model, or a fetched file is damaged.
        ConfigError: If a revision is given for a model that has none.
    """
    if not model or "\0" in model:
        raise ModelError("the model's name is empty" if not model else "the model's name holds a NUL character")
    entry = catalogue.find(model)
    hub = _HUB_ID.fullmatch(model)
    path = Path(model).expanduser()
    is_path = entry is None and (os.path.exists(path) or _can_only_be_a_path(model, hub is not None))  # noqa: PTH110
    if revision is not None and (entry is not None or is_path or hub is None):
        raise ConfigError("revision", revision, "left out: only hub models have revisions")
    if entry is not None:
        return ModelFiles(path=model_cache.ensure(entry, download_dir, progress), kind="gguf", name=entry.name)
    if is_path:
        try:
            return _local(path, model)
        except OSError as error:  # a folder that may not be entered
            raise os_error(path, error) from None
    if hub is not None:
        return _from_hub(hub[1], hub[2], revision, download_dir)
    raise ModelError(_unknown(model))


def open_checkpoint(files: ModelFiles, *, num_threads: int | None = None) -> Checkpoint:
    """Open the model, its config changed as `files.overrides` says.

    Raises:
        ModelFileError, UnsupportedModelError: If it is damaged, or of a kind that is not read.
    """
    opener = GGUFCheckpoint if files.kind == "gguf" else HFCheckpoint
    checkpoint: Checkpoint = opener(files.path, num_threads=num_threads)
    if files.overrides:
        checkpoint.config |= files.overrides
        try:
            check_config(checkpoint.config, "hf_overrides", sum(1 for _ in checkpoint.names()))
        except BaseException:
            checkpoint.close()
            raise
    return checkpoint


def _can_only_be_a_path(model: str, is_hub_id: bool) -> bool:
    return model.startswith((".", "/", "~")) or (model.lower().endswith(".gguf") and not is_hub_id)


def _local(path: Path, given: str) -> ModelFiles:
    name = path.name or path.resolve().name
    if path.is_dir():
        if not (path / CONFIG).is_file():
            ggufs = sorted(p.name for p in path.glob("*.gguf"))
            hint = f"; give the file itself, for example {ggufs[0]}" if ggufs else ""
            if is_there(path / ADAPTER):
                hint = (
                    f", only an adapter (LoRA: {ADAPTER}); Octavo has none: merge it into its base model and save that"
                )
            elif is_there(path / CONFIG):
                hint = ": what has that name is no file, or a link to nothing"
            raise ModelFileError(name, "folder", f"holds no {CONFIG}{hint}")
        return ModelFiles(path=path, kind="huggingface", name=path.resolve().name)
    if not path.exists():
        raise ModelError(f"there is no file or folder {given[:200]}")
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return ModelFiles(path=path, kind="gguf", name=path.stem)
    if suffix in PICKLES:
        raise ModelFileError(name, "file", "is a pickle, which can run code when it is opened: refused")
    if suffix in OTHERS:
        raise ModelFileError(name, "file", f"holds weights for {OTHERS[suffix]}, which are not read")
    if suffix == ".safetensors":
        raise ModelFileError(name, "file", f"weights alone are no model; give the folder that has {CONFIG} too")
    raise ModelFileError(name, "file", "is neither a .gguf file nor a Hugging Face folder")


def _from_hub(repo: str, file: str | None, revision: str | None, download_dir: str | Path | None) -> ModelFiles:
    """Through huggingface_hub, which honours HF_HOME, HF_TOKEN and HF_HUB_OFFLINE."""
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import hf_hub_download, snapshot_download

    where = None if download_dir is None else str(Path(download_dir).expanduser())
    try:
        if file is not None:
            path = Path(hf_hub_download(repo, file, revision=revision, cache_dir=where))
            return ModelFiles(path=path, kind="gguf", name=f"{repo}/{file}")
        folder = snapshot_download(repo, revision=revision, cache_dir=where, allow_patterns=list(_HUB_FILES))
    except hub_errors.GatedRepoError:
        raise ModelError(f"hub model {repo}: access is restricted; ask for it there, and set HF_TOKEN") from None
    except hub_errors.RepositoryNotFoundError:
        raise ModelError(f"hub model {repo}: there is none, or it needs an HF_TOKEN.{_did_you_mean(repo)}") from None
    except hub_errors.RevisionNotFoundError:
        raise ModelError(f"hub model {repo}: there is no revision {str(revision)[:100]!r}") from None
    except hub_errors.LocalEntryNotFoundError:
        raise ModelError(f"hub model {repo}: {_unreachable()}.{_did_you_mean(repo)}") from None
    except hub_errors.EntryNotFoundError:
        raise ModelError(f"hub model {repo}: has no file {file!r}") from None
    except (hub_errors.HfHubHTTPError, hub_errors.HFValidationError, hub_errors.OfflineModeIsEnabled, OSError) as error:
        raise ModelError(f"hub model {repo}: could not be fetched ({type(error).__name__})") from error
    if not (Path(folder) / CONFIG).is_file():
        raise ModelError(f"hub model {repo}: has no {CONFIG}; for a GGUF file of it give {repo}/FILE.gguf")
    return ModelFiles(path=Path(folder), kind="huggingface", name=repo)


def _unreachable() -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "not in the local hub cache, and HF_HUB_OFFLINE forbids fetching it"
    return "not in the local hub cache, and the hub cannot be reached"


def _unknown(model: str) -> str:
    return (
        f"no model {model[:100]!r}: give a catalogue name ({', '.join(catalogue.names())}), a Hugging Face folder, "
        f"a .gguf file or a hub id (owner/name).{_did_you_mean(model)}"
    )


def _did_you_mean(model: str) -> str:
    near = catalogue.near(model.rsplit("/", 1)[-1])
    return f" Did you mean {' or '.join(near)}?" if near else ""
