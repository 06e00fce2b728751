"""The `llm` command with a model of its own configuration, whole, streamed and in a conversation."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL, MODEL = os.environ["OCTAVO_URL"] + "/v1", os.environ["OCTAVO_MODEL"]
LLM = Path(sys.executable).with_name("llm")


def llm(*words: str) -> str:
    done = subprocess.run([LLM, *words], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "sk-any"}
    config = f"- model_id: octavo\n  model_name: {MODEL}\n  api_base: {URL}\n  api_key_name: octavo\n"
    (Path(folder) / "extra-openai-models.yaml").write_text(config)
    (Path(folder) / "keys.json").write_text('{"octavo": "sk-any"}')
    assert "octavo" in llm("models")
    options = ("-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "8")
    streamed = llm(*options, "Name a river.")
    whole = llm(*options, "--no-stream", "Name a river.")
    assert streamed.strip() and streamed == whole, (streamed, whole)
    assert llm("-c", "Another one, please.", "-o", "max_tokens", "8").strip()
    assert "Name a river." in llm("logs", "-n", "3")
