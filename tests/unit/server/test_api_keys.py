"""API keys."""

import pytest

from octavo.server.auth import KeyRing

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
