"""The file that maps API keys to tenants.

A line is a tenant, a key, and options, apart by white space; `#` begins a comment:

    alice   sk-aaaa...
    bob     sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08   max_requests=4

A key may stand there as the SHA-256 of itself, so that the file tells nobody what to send. A tenant may have several
keys. Errors name the line, never what is in it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from octavo.errors import ConfigError
from octavo.messages import DEFAULT_TENANT

MAX_FILE_BYTES = 16 << 20
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_OPTION = re.compile(r"max_requests=([1-9][0-9]{0,6})")


class Caller(msgspec.Struct, frozen=True):
    """Whom a key stands for."""

    tenant: str = DEFAULT_TENANT
    max_requests: int | None = None
    """At once; None follows the server's limit."""


def read_key_file(path: str) -> dict[bytes, Caller]:
    """Callers by the SHA-256 of their keys.

    Raises:
        ConfigError: If there is no such file, or a line is not as above.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("api_key_file", path, f"a file to read ({error.strerror})") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError("api_key_file", path, f"a file of at most {MAX_FILE_BYTES} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ConfigError("api_key_file", path, "a text in UTF-8") from None
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        digest, caller = _read_line(words, f"line {number} of {path}")
        if callers.setdefault(digest, caller) != caller:
            raise ConfigError("api_key_file", f"line {number} of {path}", "without a key that another line has")
    if not callers:
        raise ConfigError("api_key_file", path, "a file that holds at least one key")
    return callers


def _read_line(words: list[str], where: str) -> tuple[bytes, Caller]:
    for at, word in enumerate(words):
        if word.startswith("#"):
            words = words[:at]
            break
    if len(words) not in (2, 3) or not _TENANT.fullmatch(words[0]):
        allowed = "TENANT KEY or TENANT KEY max_requests=N, a tenant being 1 to 64 of A-Z a-z 0-9 . _ -"
        raise ConfigError("api_key_file", where, allowed)
    option = _OPTION.fullmatch(words[2]) if len(words) == 3 else None
    if len(words) == 3 and option is None:
        raise ConfigError("api_key_file", where, "TENANT KEY max_requests=N, with N from 1 to 9999999")
    hashed = _HASHED.fullmatch(words[1])
    if words[1].startswith("sha256:") and hashed is None:
        raise ConfigError("api_key_file", where, "a key, or sha256: and 64 hexadecimal digits")
    digest = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(words[1].encode()).digest()
    return digest, Caller(words[0], int(option[1]) if option else None)
