"""aiperf: a short profile of chat and of completions, streamed, with the server's own token counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

URL, MODEL, TOKENIZER = os.environ["OCTAVO_URL"], os.environ["OCTAVO_MODEL"], os.environ["OCTAVO_TOKENIZER"]
AIPERF = Path(sys.executable).with_name("aiperf")

# Offline it looks for a folder's name on the hub; online it opens the folder.
environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}

for kind in ("chat", "completions"):
    command = [str(AIPERF), "profile", "--model", MODEL, "--url", URL, "--endpoint-type", kind, "--streaming"]
    command += ["--tokenizer", TOKENIZER, "--concurrency", "2", "--request-count", "8", "--ui", "none"]
    command += [
        "--synthetic-input-tokens-mean",
        "32",
        "--output-tokens-mean",
        "12",
        "--extra-inputs",
        "ignore_eos:true",
    ]
    command += ["--artifact-dir", f"out-{kind}", "--random-seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (report,) = Path(f"out-{kind}").rglob("profile_export_aiperf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 8 and not figures.get("error_summary"), figures
    assert figures["time_to_first_token"]["avg"] > 0
