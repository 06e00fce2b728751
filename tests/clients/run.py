"""Real clients against a real server, each in an environment of its own: `make test-clients`.

    python tests/clients/run.py --environments build/clients [NAME ...]

A client is a script, `use_NAME.py`, that fails by an exception. It finds the server at $OCTAVO_URL, the model's name in
$OCTAVO_MODEL, and a folder with the model's tokenizer in $OCTAVO_TOKENIZER.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support.server_process import TINY_MODEL, TINY_TEMPLATE, ServerProcess  # noqa: E402

EXTRAS = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TORCH = tuple(EXTRAS["torch"])
"""Installed before those that need some torch: of themselves they would take the newest, with gigabytes for GPUs."""
CLIENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "bench_shape": (),
    "litellm": (("litellm",),),
    "langchain": (("langchain-openai",),),
    "llamaindex": (("llama-index-llms-openai-like",),),
    "llm_command": (("llm",),),
    "lm_eval": (TORCH, ("lm-eval[api]", "transformers")),
    "guidellm": (TORCH, ("guidellm",)),
    "aiperf": (("aiperf",),),
}
"""What each needs from the package index, in this order."""
LIMIT_S = 1800


def environment(folder: Path, name: str) -> Path:
    """The Python of a client's environment, made once."""
    python = folder / name / "bin" / "python"
    done = folder / name / ".done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        for packages in CLIENTS[name]:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        done.touch()
    return python


def use(name: str, python: Path, server: ServerProcess) -> bool:
    """Run a client's script and say how it went."""
    env = {**os.environ, "OCTAVO_URL": server.url, "OCTAVO_MODEL": "tiny", "OCTAVO_TOKENIZER": str(TINY_MODEL)}
    env |= {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            script = str(HERE / f"use_{name}.py")
            done = subprocess.run(
                [str(python), script], env=env, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
            )
        passed, said = done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    except subprocess.TimeoutExpired:
        passed, said = False, f"took longer than {LIMIT_S} s"
    print(f"{name:<12}{'passed' if passed else 'FAILED'} in {time.monotonic() - begin:.0f} s", flush=True)
    if not passed:
        print(said)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)} (default: all)")
    args = parser.parse_args()
    names = args.names or list(CLIENTS)
    pythons = {name: environment(args.environments.resolve(), name) for name in names}
    flags = ("--chat-template", str(TINY_TEMPLATE), "--served-model-name", "tiny", "--num-blocks", "600")
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(TINY_MODEL, *flags, log=Path(folder) / "log").wait_ready()
        try:
            failed = [name for name in names if not use(name, pythons[name], server)]
        finally:
            server.stop()
    print(f"{len(names) - len(failed)} of {len(names)} clients pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
