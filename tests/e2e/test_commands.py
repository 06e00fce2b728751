"""The commands on a real model, as a user runs them: processes, pipes, pasted requests."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.commands import octavo
from support.server_process import TINY_MODEL, TINY_TEMPLATE, ServerProcess

MODEL = str(TINY_MODEL)
TEMPLATE = ["--chat-template", str(TINY_TEMPLATE)]


def test_generate_from_argument_pipe_and_file(tmp_path: Path) -> None:
    words = ["--temperature", "0", "--max-tokens", "12"]
    given = octavo("generate", MODEL, "Once upon a time", *words)
    assert given.returncode == 0, given.stderr
    assert len(given.stdout.split()) > 3 and given.stdout.endswith("\n")
    piped = octavo("generate", MODEL, *words, stdin="Once upon a time")
    assert piped.stdout == given.stdout
    prompts = tmp_path / "prompts"
    prompts.write_text('Once upon a time\n\n{"prompt": "Lily saw"}\n')
    lines = octavo("generate", MODEL, "--file", str(prompts), "--n", "2", *words).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["index"], row["prompt"], len(row["answers"])) for row in rows] == [
        (0, "Once upon a time", 2),
        (1, "Lily saw", 2),
    ]
    assert rows[0]["answers"][0]["text"] == given.stdout[:-1], "who else is in the batch changes nothing"
    assert {answer["finish_reason"] for row in rows for answer in row["answers"]} == {"length"}


def test_a_prompt_that_does_not_fit_fails_alone() -> None:
    long = " word" * 400
    done = octavo("generate", MODEL, "--file", "-", "--max-tokens", "3", stdin=f"Once\n{long}\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and "answers" in rows[0] and "error" in rows[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["generate", MODEL], "TEXT"),
        (["generate", MODEL, "x", "--temperature", "-1"], "temperature = -1.0: must be"),
        (["generate", "no-such-model", "x"], "no model 'no-such-model'"),
        (["generate", MODEL, "x", "--block-size", "3"], "block_size = 3: must be"),
        (["serve", MODEL, "--port", "70000"], "port = 70000: must be"),
        (["serve", MODEL, "--isa", "sse2"], "isa = 'sse2': must be"),
    ],
)
def test_mistakes_are_one_line_and_status_2(words: list[str], line: str) -> None:
    done = octavo(*words)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert line in last and "Traceback" not in done.stderr


def test_what_cannot_be_served_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    """A key file, a folder, a certificate, a port: one line each, and no word of loading."""
    (tmp_path / "keys").write_text("alice\n")
    (tmp_path / "file").write_text("")
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = str(taken.getsockname()[1])
    missing = str(tmp_path / "missing")
    for flags, line in (
        (["--api-key-file", str(tmp_path / "keys")], "api_key_file = "),
        (["--api-key-file", missing], "api_key_file = "),
        (["--files-dir", str(tmp_path / "file")], "files_dir = "),
        (["--ssl-keyfile", missing, "--ssl-certfile", missing], "ssl_certfile = "),
        (["--uds", str(tmp_path / "file")], "uds = "),
        (["--port", port], f"port = {port}: must be free to listen on"),
        (["--generation-config", missing], "generation_config"),
        (["--default-chat-template-kwargs", '{"tools": 1}'], "default_chat_template_kwargs = "),
    ):
        done = octavo("serve", MODEL, *(["--port", "0"] if "--port" not in flags else []), *flags)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and line in done.stderr, done.stderr
    taken.close()


def test_chat_with_a_model_of_its_own() -> None:
    done = octavo("chat", MODEL, *TEMPLATE, "--temperature", "0", "--max-tokens", "5", stdin="Once upon\n/reset\nHi\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3 and "(forgotten)" in done.stdout


def test_bench_offline_and_bench_serve_with_a_server_of_its_own(tmp_path: Path) -> None:
    workload = tmp_path / "w.jsonl"
    workload.write_text('{"prompt": "Once upon a time", "output_token_count": 8, "n": 2}\n')
    common = ["--dataset-path", str(workload), "--num-prompts", "3", "--save-result", "--result-dir", str(tmp_path)]
    offline = octavo("bench", "offline", MODEL, *common, "--result-filename", "offline.json")
    assert offline.returncode == 0, offline.stderr
    served = octavo("bench", "serve", MODEL, *common, "--result-filename", "serve.json", "--request-rate", "50")
    assert served.returncode == 0, served.stderr
    for name in ("offline.json", "serve.json"):
        result = json.loads((tmp_path / name).read_text())
        assert (result["completed"], result["total_output_tokens"]) == (3, 48)
    assert result["own_server"] and result["wrong_length"] == 0 and result["request_rate"] == 50
    assert result["peak_rss_bytes"] > 10e6


def test_bench_latency(tmp_path: Path) -> None:
    shape = [
        "--input-len",
        "12",
        "--output-len",
        "5",
        "--batch-size",
        "3",
        "--num-iters-warmup",
        "1",
        "--num-iters",
        "2",
    ]
    save = ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "latency.json"]
    done = octavo("bench", "latency", MODEL, *shape, *save)
    assert done.returncode == 0, done.stderr
    assert "3 x (12 in, 5 out)" in " ".join(done.stdout.split()) and "first token" in done.stdout
    result = json.loads((tmp_path / "latency.json").read_text())
    assert len(result["latency_ms"]) == len(result["ttft_ms"]) == len(result["tpot_ms"]) == 2
    for whole, first, each in zip(result["latency_ms"], result["ttft_ms"], result["tpot_ms"], strict=True):
        assert whole == pytest.approx(first + 4 * each)


def test_bench_kernels(tmp_path: Path) -> None:
    few = ["--rows", "1", "16", "--max-context", "512", "--repeats", "1", "--num-threads", "2"]
    done = octavo("bench", "kernels", MODEL, *few, "--json", str(tmp_path / "kernels.json"))
    assert done.returncode == 0, done.stderr
    assert "of floor" in done.stdout and "bfloat16, contiguous" in done.stdout and "sample, greedy" in done.stdout
    result = json.loads((tmp_path / "kernels.json").read_text())
    assert result["shapes"]["hidden_size"] == 64 and result["machine"]["cpus"] >= 1
    for row in result["results"]:
        assert row["ms"] > 0 and row["of_floor"] > 0 and row["num_threads"] == 2 and len(row["repeats_ms"]) == 1
    refused = octavo("bench", "kernels", MODEL, "--cpu-time")
    assert refused.returncode == 2 and "num_threads = 0: must be 1 with --cpu-time" in refused.stderr


def test_bench_quality(tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a little girl named Lily. She loved to play outside in the park. " * 3)
    words = ["--text", str(text), "--window", "32", "--stride", "8", "--dtype", "bfloat16", "--num-blocks", "100"]
    done = octavo("bench", "quality", MODEL, *words)
    assert done.returncode == 0, done.stderr
    perplexities = [float(found) for found in re.findall(r"perplexity ([\d.]+)", done.stdout)]
    assert len(perplexities) == 2 and 1 < perplexities[0] < 8, "a story in the words the model was trained on"
    assert perplexities[1] == pytest.approx(perplexities[0], rel=0.05)


def test_what_serve_prints_works_when_pasted(tmp_path: Path) -> None:
    flags = [*TEMPLATE, "--max-model-len", "128", "--served-model-name", "tiny 'tale'"]
    server = ServerProcess(TINY_MODEL, *flags, log=tmp_path / "log")
    try:
        server.wait_ready()
        shown = _wait_for_announcement(server)
        for fact in ("weights", "kernels", "KV memory", "blocks", "start", server.url):
            assert fact in shown
        curl = re.search(r"^curl .*$", shown, re.MULTILINE)
        snippet = re.search(r"^from openai.*?^    print\(.*?$", shown, re.MULTILINE | re.DOTALL)
        assert curl and snippet
        if shutil.which("curl"):
            raw = subprocess.run(["sh", "-c", curl[0]], capture_output=True, text=True, timeout=60, check=True).stdout
            frames = [frame for frame in raw.split("\n\n") if frame]
            assert len(frames) > 5 and frames[-1] == "data: [DONE]"
        said = subprocess.run([sys.executable, "-c", snippet[0]], capture_output=True, text=True, timeout=60)
        assert said.returncode == 0 and len(said.stdout) > 10, said.stderr
    finally:
        server.stop()


def _wait_for_announcement(server: ServerProcess) -> str:
    deadline = time.monotonic() + 10
    while "flush=True)" not in (shown := server.log.read_text()):
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)
    return shown
