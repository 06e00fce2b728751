"""API keys."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.errors import ConfigError
from octavo.server.auth import Access, KeyRing
from octavo.server.openai.errors import HTTPProblem

RING = KeyRing(["first-key", "second-key"])


@pytest.mark.parametrize("header", [b"Bearer first-key", b"bearer second-key", b"BEARER  first-key "])
def test_accepted_keys(header: bytes) -> None:
    assert RING.admits(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"first-key",
        b"Basic first-key",
        b"Bearer first-ke",
        b"Bearer \xff\xfe",
        b"Bearer first-key2",
        b"Bearer first-key second-key",
    ],
)
def test_everything_else_is_refused(header: bytes | None) -> None:
    assert not RING.admits(header)


def test_no_keys_means_open() -> None:
    assert KeyRing([]).admits(None)


def test_who_brings_no_key_is_told_both_ways() -> None:
    with pytest.raises(HTTPProblem, match="Authorization: Bearer KEY, or x-api-key: KEY"):
        Access(HTTPConfig(api_key=("user",))).check("/v1/messages", None)


ADMIN_PATHS = (
    "/v1/kv/blocks",
    "/v1/kv/audit",
    "/v1/kv/published",
    "/v1/kv/published/x",
    "/v1/kv/reset",
    "/v1/kv/",
    "/v1/kv/new",
)
ADMIN_PATHS += ("/reset_prefix_cache",)
STATS = "/v1/kv/stats"


def said(http: HTTPConfig, path: str, key: str | None) -> int:
    """The status that a key gets."""
    try:
        Access(http).check(path, None if key is None else f"Bearer {key}".encode())
    except HTTPProblem as refusal:
        return refusal.reply.status
    return 200


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_admin_paths_take_the_admin_key_alone(path: str) -> None:
    for http in (HTTPConfig(admin_api_key="adm"), HTTPConfig(admin_api_key="adm", api_key=("user",))):
        assert [said(http, path, key) for key in ("adm", "user", "ad", "adm2", "", None)] == [200, *[401] * 5]


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_without_an_admin_key_nobody_is_let_in(path: str) -> None:
    assert [said(HTTPConfig(), path, key) for key in ("adm", None)] == [403, 403]
    keyed = HTTPConfig(api_key=("user",))
    assert [said(keyed, path, key) for key in ("user", "adm", None)] == [403, 401, 401]
    with pytest.raises(HTTPProblem, match="--admin-api-key"):
        Access(HTTPConfig()).check(path, None)


def test_the_figures_take_either_key_and_the_rest_only_the_users() -> None:
    http = HTTPConfig(admin_api_key="adm", api_key=("user",))
    assert [said(http, STATS, key) for key in ("adm", "user", "x", None)] == [200, 200, 401, 401]
    assert [said(http, "/v1/completions", key) for key in ("adm", "user", None)] == [401, 200, 401]
    assert [said(http, "/health", key) for key in ("adm", "user", None)] == [200] * 3
    assert Access(http).is_admin(b"Bearer adm") and not Access(http).is_admin(b"Bearer user")
    assert not Access(HTTPConfig()).is_admin(b"Bearer adm"), "no key is not every key"


@pytest.mark.parametrize("keys", [{"api_key": ("",)}, {"api_key": ("a", " ")}, {"admin_api_key": ""}])
def test_an_empty_key_is_none(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        HTTPConfig(**keys)
