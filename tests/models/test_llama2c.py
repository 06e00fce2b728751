"""The conversion of llama2.c's files against one that others have made."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.numpy

from support.llama2c import convert
from support.paths import SHARED, TINYSTORIES

pytestmark = pytest.mark.models
ORIGINAL = SHARED / "models" / TINYSTORIES.name / "model.bin"


@pytest.mark.skipif(not ORIGINAL.exists(), reason=f"needs {ORIGINAL}; OCTAVO_TEST_DATA names the folder of `models`")
def test_tinystories(tmp_path: Path) -> None:
    found = safetensors.numpy.load_file(convert(ORIGINAL, tmp_path) / "model.safetensors")
    expected = safetensors.numpy.load_file(TINYSTORIES / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all((found[name] == tensor).all() for name, tensor in expected.items())
