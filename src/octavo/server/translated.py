"""What an API that is translated into chat completions needs: errors that name the fields its clients know."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from octavo.errors import RequestError


@contextmanager
def renamed(name_of: Callable[[str], str]) -> Iterator[None]:
    """Errors raised within name the client's fields.

    Args:
        name_of: From the field of a chat to what the client calls it.
    """
    try:
        yield
    except RequestError as error:
        if error.param is None:
            raise
        raise _of_field(error, name_of(error.param)) from None


def by_patterns(names: Mapping[str, str]) -> Callable[[str], str]:
    """Names by regular expressions, of which the first that matches the whole field counts. A replacement may use its
    groups; a field that none matches keeps its name."""

    def name_of(field: str) -> str:
        for pattern, name in names.items():
            match = re.fullmatch(pattern, field)
            if match is not None:
                return match.expand(name)
        return field

    return name_of


def _of_field(error: RequestError, param: str) -> RequestError:
    """The same error, of another field."""
    twin = copy.copy(error)
    twin.param = param
    message = str(error)
    twin.args = (
        param + message.removeprefix(error.param or "") if message.startswith(error.param or " ") else message,
    )
    return twin
