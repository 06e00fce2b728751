"""`octavo serve`: the HTTP server, and what it says once it is ready.

The text is laid out by hand: importing a library for it would make the server start later.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import shlex
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.cli.config_file import add_config_flag
from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, http_config
from octavo.cli.text import count, size
from octavo.cli.vllm_flags import add_old_flags
from octavo.config import CacheConfig, EngineConfig, HTTPConfig
from octavo.engine.start_up import without_idle_threads
from octavo.messages import EngineInfo

KV_POLICY = {
    "orca-oracle": "orca-oracle: each sequence reserves one piece of memory for its prompt and max_tokens",
    "orca-pow2": "orca-pow2: each sequence reserves one piece of memory for its prompt and the next power of two of "
    "its max_tokens",
    "orca-max": "orca-max: each sequence reserves one piece of memory for the whole context",
    "fastertransformer": "fastertransformer: requests are batched whole and answered when their batch has ended; each "
    "sequence reserves one piece of memory for the whole context",
}
"""What the baselines do; nothing is said of pages."""
EVICTION = {"lru": "the least recently used make room first", "cost": "the cheapest to compute again make room first"}

_EXAMPLE_QUESTION = "What is a KV cache? Answer in one sentence."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    add_config_flag(parser)
    add_flags(parser, (*ENGINE_GROUPS, HTTPConfig))
    add_old_flags(parser)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic() - _process_age_s()
    os.environ.update(without_idle_threads(os.environ))
    config = engine_config(args, model=args.model)
    http = _settle_port(http_config(args))
    logging.basicConfig(level=http.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from octavo.server.app import serve

    serve(config, http, _announcer(http, started), lambda: _say_loading(config))
    return 0


def _say_loading(config: EngineConfig) -> None:
    print(f"octavo: loading {config.model.model} ...", file=sys.stderr, flush=True)


def _settle_port(http: HTTPConfig) -> HTTPConfig:
    """Port 0 asks for any free port; it is chosen here, so that the printed requests can name it."""
    if http.port or http.uds is not None:
        return http
    with socket.socket(socket.AF_INET6 if ":" in http.host else socket.AF_INET) as probe:
        probe.bind((http.host, 0))
        return dataclasses.replace(http, port=probe.getsockname()[1])


def _process_age_s() -> float:
    """Seconds since the kernel started this process, 0 where it does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _announcer(http: HTTPConfig, started: float) -> Callable[[Any], None]:
    def on_ready(engine: Any) -> None:
        from octavo.server.context import served_names  # loaded by now

        name = served_names(http, engine.info)[0]
        took_s = time.monotonic() - started
        print(announcement(engine.info, engine.config.cache, http, name, took_s), flush=True)

    return on_ready


def announcement(info: EngineInfo, cache: CacheConfig, http: HTTPConfig, name: str, start_s: float) -> str:
    """What the engine settled on, and requests to paste."""
    facts = {
        "model": name,
        "weights": f"{info.weight_dtype}, {size(info.weight_bytes)}",
        "not used": info.weights_unused,
        "kernels": f"{info.kernel_path}, {count(info.num_threads, 'thread')}",
        "context": f"{info.max_model_len:,} tokens",
        "batch": f"up to {info.max_num_seqs} sequences and {info.max_num_batched_tokens:,} tokens in a step",
        "KV memory": f"{size(info.kv_bytes)} in {info.kv_dtype}: {info.block_size} tokens per block, "
        f"{info.kv_bytes_per_token:,} bytes per token",
        "": info.kv_reason,
        "KV policy": KV_POLICY.get(cache.kv_policy, ""),
        "blocks": info.block_size_reason,
        "layers": info.kv_groups,
        "swap space": swap_space(info) if cache.kv_policy == "paged" else "none: nobody is preempted",
        "prefixes": "cached and shared, " + EVICTION[cache.eviction] if cache.caches_prefixes else "not cached",
        "erasure": "every freed block is zeroed" if cache.erase_freed_blocks else "off (--erase-freed-blocks)",
        "start": f"{start_s:.2f} s, {info.load_s:.2f} s of it for the weights",
    }
    return "\n".join(
        [
            "",
            *(line for label, text in facts.items() if text for line in _entry(label, text)),
            "",
            f"Octavo is ready on {http.uds or base_url(http)}. Try it from another terminal:",
            "",
            curl_line(http, name),
            "",
            *(_in_python(http, name) if http.uds is None else ()),
        ]
    )


def _in_python(http: HTTPConfig, name: str) -> list[str]:
    """Not for a Unix socket: `openai` reaches one through an HTTP library that depends on its version."""
    return ["or in Python (pip install openai):", "", openai_snippet(http, name), ""]


def _entry(label: str, text: str) -> list[str]:
    """A fact in as many lines as it takes."""
    first, *more = textwrap.wrap(text, 87, break_long_words=False)
    return [f"  {label:<11}{first}", *(" " * 13 + line for line in more)]


def swap_space(info: EngineInfo) -> str:
    """Room for preempted requests in host memory."""
    if not info.num_host_blocks:
        return "none: preempted requests are computed again"
    room = f"{size(info.num_host_blocks * info.bytes_per_block)} of host memory, {count(info.num_host_blocks, 'block')}"
    return info.host_reason or room


def base_url(http: HTTPConfig) -> str:
    """The address a client on this machine uses. A client of a Unix socket names any host."""
    scheme = "http" if http.ssl_certfile is None else "https"
    if http.uds is not None:
        return f"{scheme}://localhost"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(http.host, http.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{http.port}"


def curl_line(http: HTTPConfig, model: str) -> str:
    """A streaming chat completion for a POSIX shell. Keys are secrets: the line names a variable instead."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": _EXAMPLE_QUESTION}]}
    words = ["curl -N"]
    if http.uds is not None:
        words += ["--unix-socket", shlex.quote(http.uds)]
    if http.ssl_certfile is not None:
        words += ["--cacert", shlex.quote(http.ssl_certfile)]
    words += [f"{base_url(http)}/v1/chat/completions", "-H 'Content-Type: application/json'"]
    if _asks_for_keys(http):
        words.append('-H "Authorization: Bearer $OCTAVO_API_KEY"')
    quoted = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return " ".join([*words, f"-d '{quoted}'"])


def openai_snippet(http: HTTPConfig, model: str) -> str:
    """The same with the `openai` package."""
    key, modules, over = '"none"', [], ""
    if _asks_for_keys(http):
        key, modules = 'os.environ["OCTAVO_API_KEY"]', ["os"]
    if http.ssl_certfile is not None:
        modules.append("ssl")
        over = f", http_client=DefaultHttpxClient(verify=ssl.create_default_context(cafile={http.ssl_certfile!r}))"
    return "\n".join(
        [
            *(f"import {name}" for name in modules),
            f"from openai import {'DefaultHttpxClient, ' if over else ''}OpenAI",
            f"client = OpenAI(base_url={json.dumps(base_url(http) + '/v1')}, api_key={key}{over})",
            f"messages = [{{'role': 'user', 'content': {_EXAMPLE_QUESTION!r}}}]",
            f"stream = client.chat.completions.create(model={model!r}, messages=messages, stream=True)",
            "for chunk in stream:",
            "    print(chunk.choices[0].delta.content or '', end='', flush=True)",
        ]
    )


def _asks_for_keys(http: HTTPConfig) -> bool:
    return bool(http.api_key) or http.api_key_file is not None
