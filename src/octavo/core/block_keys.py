"""The identity of a block's content: what must be equal for one block to stand in for another.

    root key  = H(secret; model fingerprint, tenant, adapter, salt)
    block key = H(secret; parent's key, the block's token ids, extras)

H is BLAKE2b keyed with the scope's secret (RFC 7693), so keys can neither be guessed nor made to collide by someone
who does not have it, and mean nothing outside their scope. A chain of keys names whole blocks only. Clients never
supply a key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b

KEY_BYTES = 32

_ROOT = b"octavo-root"
_BLOCK = b"octavo-block"

Extras = Mapping[int, Sequence[bytes]]
"""Column of a block to what its tokens stand for besides their ids, an image's digest say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFingerprint:
    """Everything that decides the bits in a block, besides its tokens."""

    weights: str
    """Digest of the weights as loaded."""
    kv_dtype: str
    block_size: int
    layout_version: int
    """Counted up when the arrangement inside a block changes."""
    kernel_path: str
    """Other instructions may round otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Who may share blocks with whom: only chains with equal scopes can meet."""

    secret: bytes = field(repr=False)
    """The tenant's, 16 to 64 bytes."""
    tenant: str
    adapter: str | None = None
    salt: str | None = None
    """A client's wish for privacy inside its tenant."""

    def __post_init__(self) -> None:
        if not 16 <= len(self.secret) <= blake2b.MAX_KEY_SIZE:
            # The value itself stays out of the message.
            raise ValueError(f"a scope's secret has {len(self.secret)} bytes: must be 16 to {blake2b.MAX_KEY_SIZE}")


def root_key(model: ModelFingerprint, scope: Scope) -> bytes:
    """The parent of a chain's first block, `KEY_BYTES` long."""
    parts = [f"{f.name}={getattr(model, f.name)}" for f in fields(model)]
    parts += [f"tenant={scope.tenant}"]
    # An absent adapter is not the adapter of any name.
    parts += [f"adapter={scope.adapter}"] if scope.adapter is not None else []
    parts += [f"salt={scope.salt}"] if scope.salt is not None else []
    return _hash(scope.secret, _ROOT, (part.encode("utf-8", "surrogatepass") for part in parts))


def block_key(secret: bytes, parent: bytes, token_ids: Sequence[int], extras: Sequence[bytes] = ()) -> bytes:
    """The key of a block that holds `token_ids` after everything that `parent` names.

    Raises:
        OverflowError: If a token id is negative or does not fit 32 bits.
    """
    try:
        tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise OverflowError(f"a token id among {list(token_ids)[:8]} does not fit 32 bits") from None
    return _hash(secret, _BLOCK, [parent, tokens, *extras])


def extend_chain(
    keys: list[bytes],
    root: bytes,
    secret: bytes,
    token_ids: Sequence[int],
    block_size: int,
    extras: Extras | None = None,
) -> None:
    """Append the keys of the whole blocks of `token_ids` that `keys` does not have yet; a partial tail has none.

    `keys` holds those of the first `len(keys)` blocks of the same tokens. Each block is hashed once however often its
    sequence grows.
    """
    parent = keys[-1] if keys else root
    for column in range(len(keys), len(token_ids) // block_size):
        block = token_ids[column * block_size : (column + 1) * block_size]
        parent = block_key(secret, parent, block, extras.get(column, ()) if extras else ())
        keys.append(parent)


def _hash(secret: bytes, kind: bytes, parts: Iterable[bytes]) -> bytes:
    """Digest of the parts, each with its length before it, so that no two lists of parts read the same."""
    framed = b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])
    return blake2b(framed, key=secret, digest_size=KEY_BYTES, person=kind).digest()
