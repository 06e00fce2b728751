"""guidellm: short benchmarks of chat, completions and responses, streamed, none failing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

URL, MODEL, TOKENIZER = os.environ["OCTAVO_URL"], os.environ["OCTAVO_MODEL"], os.environ["OCTAVO_TOKENIZER"]
GUIDELLM = Path(sys.executable).with_name("guidellm")

for kind in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
    command = [str(GUIDELLM), "run", "--disable-console", "--profile", "kind=concurrent,streams=2"]
    command += ["--backend", f"kind=openai_http,target={URL},model={MODEL},request_format={kind},api_key=sk-any"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}", "--constraint", "kind=max_requests,count=8"]
    command += [
        "--data",
        "kind=synthetic_text,prompt_tokens=32,output_tokens=12",
        "--output",
        "kind=json,path=out.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (benchmark,) = json.loads(Path("out.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] >= 8 and totals["errored"] == 0, (kind, totals)
