"""What an engine process is told is what the front end knows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.config import EngineConfig
from octavo.engine import wire
from octavo.weights.sources import ModelFiles


def test_a_process_starts_with_all_that_is_known_of_the_model() -> None:
    files = ModelFiles(
        path=Path("/m/é"), kind="gguf", name="m", overrides={"rope_theta": 5.0, "eos_token_id": [1, None]}
    )
    defaults = [field for field in msgspec.structs.fields(files) if getattr(files, field.name) == field.default]
    assert not defaults, "give each field a value of its own, or nobody sees that it is lost"
    config = EngineConfig.of(model="m", num_blocks=7, hf_overrides={"rope_theta": 5.0})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(wire.Start.of(config, files)), type=wire.Start)
    assert sent.unpack() == (config, files)
