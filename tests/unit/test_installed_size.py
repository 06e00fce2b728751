"""The scale of `make size` counts what it should."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "scripts" / "installed_size.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("installed_size", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sizes_are_summed_by_distribution_without_the_installer(tmp_path: Path) -> None:
    for name, size in {
        "numpy/core/x.so": 100, "numpy.libs/blas.so": 50, "numpy-2.0.dist-info/RECORD": 5, "six.py": 7,
        "pip/big.py": 1000, "pip-25.0.dist-info/RECORD": 10, "setuptools/x.py": 1000,
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert script().sizes(tmp_path) == {"numpy": 155, "six.py": 7}
