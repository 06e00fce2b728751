"""lm-eval's `local-completions`: a small task of choices, scored by the prompt's logprobs, and one of generation.

The right choice is what the model itself goes on with, so that every question must be answered right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

URL, MODEL = os.environ["OCTAVO_URL"], os.environ["OCTAVO_MODEL"]
QUESTIONS = ("Once upon a time, there was a", "Lily and Tom went to the", "The dog was very happy because")

CHOICES = """\
task: own_words
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: 0
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""
GENERATION = """\
task: own_text
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{text}}"
generation_kwargs: {max_gen_toks: 8, temperature: 0, until: ["\\n\\n\\n"]}
metric_list: [{metric: exact_match}]
"""


def goes_on(question: str) -> str:
    body = {"model": MODEL, "prompt": question, "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        URL + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    text: str = json.load(urllib.request.urlopen(request))["choices"][0]["text"]
    return text


rows = [{"question": question, "text": goes_on(question)} for question in QUESTIONS]
for row in rows:
    row["choices"] = [row["text"], " zq xv kj", " purple of seven"]
Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
Path("own_words.yaml").write_text(CHOICES)
Path("own_text.yaml").write_text(GENERATION)
settings = f"model={MODEL},base_url={URL}/v1/completions,num_concurrent=2,max_length=250"
settings += f",tokenizer={os.environ['OCTAVO_TOKENIZER']},tokenizer_backend=huggingface,tokenized_requests=False"
command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", settings]
command += ["--tasks", "own_words,own_text", "--include_path", ".", "--output_path", "out", "--log_samples"]
done = subprocess.run(command, capture_output=True, text=True)
assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
(report,) = Path("out").rglob("results*.json")
results = json.loads(report.read_text())["results"]
assert results["own_words"]["acc,none"] == 1.0, results
assert results["own_text"]["exact_match,none"] == 1.0, results
