"""`metadata` of responses and batches: labels that clients put on them."""

from __future__ import annotations

from octavo.errors import RequestError

MAX_METADATA = 16
MAX_KEY_CHARS, MAX_VALUE_CHARS = 64, 512


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Raises RequestError for more, or longer, than OpenAI allows."""
    if len(metadata or ()) > MAX_METADATA:
        raise RequestError("metadata", message=f"metadata: holds more than {MAX_METADATA} entries")
    for key, value in (metadata or {}).items():
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            where = f"metadata.{key[:MAX_KEY_CHARS]}"
            allowed = f"a name of at most {MAX_KEY_CHARS} characters with a value of at most {MAX_VALUE_CHARS}"
            raise RequestError(where, message=f"{where}: must be {allowed}")
