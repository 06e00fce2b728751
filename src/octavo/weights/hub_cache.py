"""Hub models that are here, in huggingface_hub's own cache, which other programs may share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from octavo.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo


class HubModel(msgspec.Struct, frozen=True, kw_only=True):
    """A hub repository of which something that can be served is here."""

    name: str
    """owner/name"""
    path: Path
    size: int
    """Bytes, of all revisions."""


def list_hub(download_dir: str | Path | None = None) -> list[HubModel]:
    """Those that hold weights Octavo reads, by name."""
    repos = [repo for repo in _models(_scan(download_dir)) if _is_served(repo)]
    return [HubModel(name=repo.repo_id, path=repo.repo_path, size=repo.size_on_disk) for repo in repos]


def remove_hub(name: str, download_dir: str | Path | None = None) -> int:
    """Delete every revision of a hub model. Returns the bytes freed.

    Raises:
        ModelError: If it is not here.
    """
    repo = next((repo for repo in _models(_scan(download_dir)) if repo.repo_id == name), None)
    if repo is None:
        raise ModelError(f"{name[:100]!r} is not in the hub cache")
    # Not by revisions: copies of a repository have the same ones.
    shutil.rmtree(repo.repo_path)
    return repo.size_on_disk


def _scan(download_dir: str | Path | None) -> HFCacheInfo | None:
    """None where there is no cache."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(Path(download_dir or constants.HF_HUB_CACHE).expanduser())
    except (CacheNotFound, ValueError):  # ValueError: a file stands there
        return None


def _models(cache: HFCacheInfo | None) -> list[CachedRepoInfo]:
    repos = [] if cache is None else [repo for repo in cache.repos if repo.repo_type == "model"]
    return sorted(repos, key=lambda repo: repo.repo_id)


def _is_served(repo: CachedRepoInfo) -> bool:
    names = [file.file_name for revision in repo.revisions for file in revision.files]
    has_weights = any(name.endswith(".safetensors") for name in names)
    return any(name.endswith(".gguf") for name in names) or (has_weights and "config.json" in names)
