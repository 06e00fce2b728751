"""From process start to the first streamed token of a model, and what `import octavo` costs.

The server is started anew for every run; a client tries to connect every few milliseconds, sends one streaming
completion as soon as it can, and stops the clock at the first piece of text. Medians are printed; --json has all runs.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from octavo.cli.machine import fingerprint

TIMEOUT_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect(port: int, process: subprocess.Popen[bytes], deadline: float) -> socket.socket:
    while time.perf_counter() < deadline and process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.003)
    raise RuntimeError("the server did not start")


def first_text(connection: socket.socket, model: str) -> None:
    """Send a completion and return when its first text is there."""
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 4, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    seen = b""
    while b'"text"' not in seen:
        part = connection.recv(65536)
        if not part:
            raise RuntimeError(f"the server hung up: {seen[:300].decode(errors='replace')}")
        seen += part


def time_first_token(model: str, flags: list[str]) -> tuple[float, float]:
    """Seconds from process start to the port answering, and to the first token."""
    port = free_port()
    words = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port)]
    words += ["--served-model-name", "m", *flags]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(port, process, start + TIMEOUT_S) as connection:
            listening = time.perf_counter() - start
            first_text(connection, "m")
            return listening, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(60)


def time_python(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write every run with the machine's fingerprint")
    args, flags = parser.parse_known_args()
    time_first_token(args.model, flags)  # fills the page cache, as a machine that serves has it
    listening, first = zip(*(time_first_token(args.model, flags) for _ in range(args.runs)), strict=True)
    empty = [time_python("pass") for _ in range(args.runs)]
    imported = [time_python("import octavo") for _ in range(args.runs)]
    medians = {
        "first_token_s": statistics.median(first),
        "listening_s": statistics.median(listening),
        "import_octavo_s": statistics.median(imported) - statistics.median(empty),
    }
    print(f"{args.model}, median of {args.runs}:")
    print(
        f"  process start to first token  {medians['first_token_s']:.2f} s (from {min(first):.2f} to {max(first):.2f})"
    )
    print(f"  process start to listening    {medians['listening_s']:.2f} s")
    print(f"  import octavo                 {medians['import_octavo_s'] * 1e3:.0f} ms above an empty interpreter")
    if args.json:
        runs = {"first_token_s": first, "listening_s": listening, "import_s": imported, "empty_python_s": empty}
        result = {"machine": fingerprint(), "model": args.model, "flags": flags, "medians": medians, "runs": runs}
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
