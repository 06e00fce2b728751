from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.backends import ALL_WAYS, Way, ways


@pytest.fixture(params=ways(ALL_WAYS))
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture
def backend(way: Way) -> Iterator[Any]:
    opened = way.open()
    yield opened
    opened.close()
