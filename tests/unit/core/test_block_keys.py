"""Equal keys mean equal content in an equal scope; anything else gives another key."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.block_keys import KEY_BYTES, ModelFingerprint, Scope, block_key, extend_chain, root_key

SECRET = bytes(range(32))
MODEL = ModelFingerprint(weights="sha256:1", kv_dtype="bfloat16", block_size=4, layout_version=1, kernel_path="avx512")
SCOPE = Scope(secret=SECRET, tenant="red", adapter=None, salt=None)


def chain(tokens: list[int], root: bytes | None = None, **kwargs: Any) -> list[bytes]:
    keys: list[bytes] = []
    extend_chain(keys, root or root_key(MODEL, SCOPE), SECRET, tokens, MODEL.block_size, **kwargs)
    return keys


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "sha256:2"},
        {"kv_dtype": "float32"},
        {"block_size": 8},
        {"layout_version": 2},
        {"kernel_path": "avx2"},
    ],
)
def test_whatever_decides_the_bits_decides_the_root(change: dict[str, Any]) -> None:
    assert root_key(dataclasses.replace(MODEL, **change), SCOPE) != root_key(MODEL, SCOPE)


@pytest.mark.parametrize(
    "change",
    [
        {"secret": bytes(32)},
        {"tenant": "blue"},
        {"adapter": "lora"},
        {"adapter": ""},
        {"salt": "s"},
        {"salt": ""},
    ],
)
def test_whoever_may_not_share_has_another_root(change: dict[str, Any]) -> None:
    assert root_key(MODEL, dataclasses.replace(SCOPE, **change)) != root_key(MODEL, SCOPE)


def test_fields_do_not_run_into_each_other() -> None:
    one = Scope(secret=SECRET, tenant="a", adapter="b", salt=None)
    other = Scope(secret=SECRET, tenant="a", adapter=None, salt="b")
    sly = Scope(secret=SECRET, tenant="a\x00adapter=b", adapter=None, salt=None)
    assert len({root_key(MODEL, scope) for scope in (one, other, sly)}) == 3


def test_keys_are_stable_across_processes_and_have_one_size() -> None:
    """Stores outlive the process, so these values may change only with the layout version."""
    root = root_key(MODEL, SCOPE)
    assert len(root) == KEY_BYTES
    assert root.hex() == "da3d2cbf4356f7d7a1937eb5ce9a73ed63973be221f90608acc666f7c8581e0e"
    assert (
        block_key(SECRET, root, [1, 2, 3, 4], [b"image"]).hex()
        == "b729758723c5b816d5402ca84d0d4c34cc8c7e358ee4e5365feacb77f7f0eebf"
    )


def test_only_whole_blocks_have_keys_and_each_is_hashed_once() -> None:
    tokens = list(range(11))
    whole = chain(tokens)
    assert len(whole) == 2
    grown = chain(tokens[:4])
    first = grown[0]
    extend_chain(grown, root_key(MODEL, SCOPE), SECRET, tokens, MODEL.block_size)
    assert grown == whole and grown[0] is first
    assert chain(tokens[:3]) == []


def test_extras_mark_their_own_block_and_those_after_it() -> None:
    tokens = list(range(12))
    plain, marked = chain(tokens), chain(tokens, extras={1: [b"image"]})
    assert plain[0] == marked[0]
    assert plain[1] != marked[1] and plain[2] != marked[2]
    assert chain(tokens, extras={1: [b"im", b"age"]})[1] != marked[1]


@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24))
def test_two_texts_share_exactly_their_common_blocks(left: list[int], right: list[int]) -> None:
    for column, (a, b) in enumerate(zip(chain(left), chain(right), strict=False)):
        end = (column + 1) * MODEL.block_size
        assert (a == b) == (left[:end] == right[:end])


def test_the_secret_is_bounded_and_not_shown() -> None:
    for secret in (bytes(15), bytes(65)):
        with pytest.raises(ValueError, match="16 to 64"):
            Scope(secret=secret, tenant="red")
    assert "secret" not in repr(SCOPE)


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_a_token_id_fits_32_bits(token: int) -> None:
    with pytest.raises(OverflowError):
        block_key(SECRET, bytes(32), [token])
