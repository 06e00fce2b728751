"""Where `octavo generate` takes its prompts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.generate import read_prompts
from octavo.errors import ConfigError


def test_a_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "prompts.jsonl"  # longer than an error shows
    path.parent.mkdir()
    path.write_text('plain\n\n{"prompt": "an object"}\n{not one\n')
    assert read_prompts(None, str(path)) == ["plain", "an object", "{not one"]
    path.write_text('plain\n\n{"text": "no prompt"}\n')
    with pytest.raises(ConfigError, match="= 'line 3 of /"):
        read_prompts(None, str(path))
