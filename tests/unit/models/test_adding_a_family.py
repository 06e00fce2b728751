"""The walk-through in docs/models.md, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import UnsupportedModelError
from octavo.models.families import FAMILIES, decoder_spec
from octavo.models.loader import load
from octavo.weights.huggingface import HFCheckpoint
from support.tiny_models import TinyFamily, tensors, write_tiny_llama

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
NAME = "NocturneForCausalLM"


def test_a_family_is_added_in_less_than_forty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code.count("\n") < 40
    monkeypatch.setitem(FAMILIES, NAME, FAMILIES["LlamaForCausalLM"])  # taken out again afterwards
    exec(compile(code, str(PAGE), "exec"), {})
    changes: dict[str, Any] = {"embedding_gain": 2.5}
    model = TinyFamily(architecture=NAME, model_type="nocturne", changes=changes)
    checkpoint = HFCheckpoint(write_tiny_llama(tmp_path, model))
    spec = decoder_spec(checkpoint.config)
    assert (spec.hidden_size, spec.embedding_scale, spec.logits_soft_cap) == (48, 2.5, 30.0)
    weights = load(checkpoint, spec, ReferenceBackend("float32"), "float32")
    checkpoint.close()
    stored = tensors(model)
    assert np.array_equal(weights.layers[1].qkv.weight, stored["nocturne.blocks.1.attention.qkv.weight"])
    with pytest.raises(UnsupportedModelError, match="mystery_mode = True"):
        decoder_spec({**model.config(), "mystery_mode": True})
