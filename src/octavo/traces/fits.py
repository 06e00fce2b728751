"""Fits of measured engines, read from files."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ConfigError
from octavo.sim.fitted import Fit, read_fit

_MOST_BYTES = 1 << 20


def read_fit_file(path: str | Path) -> Fit:
    """The fit in a file that `octavo bench fit` wrote.

    Raises:
        ConfigError: If there is no such file, or it is not one, naming what is wrong.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError("fit", path.name, f"a file of at most {_MOST_BYTES} bytes")
        return read_fit(path.read_bytes(), path.name)
    except OSError as error:
        raise ConfigError("fit", str(path), f"a file that can be read ({error.strerror})") from None
