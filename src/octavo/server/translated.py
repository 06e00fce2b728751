"""What an API that is translated into chat completions needs: errors that name the fields its clients know."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.errors import RequestError


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised within name the client's fields.

    Args:
        names: Patterns of fields of a chat, and what each is called by the client; the first that matches the whole of
            a field counts. A replacement may use the pattern's groups.
    """
    try:
        yield
    except RequestError as error:
        if error.param is None:
            raise
        for pattern, name in names.items():
            match = re.fullmatch(pattern, error.param)
            if match is not None:
                raise _of_field(error, match.expand(name)) from None
        raise


def _of_field(error: RequestError, param: str) -> RequestError:
    """The same error, of another field."""
    twin = copy.copy(error)
    twin.param = param
    message = str(error)
    twin.args = (
        param + message.removeprefix(error.param or "") if message.startswith(error.param or " ") else message,
    )
    return twin
