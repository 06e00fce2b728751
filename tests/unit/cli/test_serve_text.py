"""What `octavo serve` prints can be pasted: the shell and Python understand it."""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any

import msgspec
import pytest

from octavo.cli.serve import announcement, base_url, curl_line, openai_snippet
from octavo.config import CacheConfig, HTTPConfig
from octavo.messages import EngineInfo

INFO = EngineInfo(
    model="smollm2-135m", max_model_len=8192, vocab_size=49152, block_size=16, num_blocks=1000, num_threads=2,
    kernel_path="avx512", weight_dtype="bfloat16", kv_dtype="bfloat16", weight_bytes=269_000_000, kv_bytes=737_280_000,
    kv_bytes_per_token=46_080, max_num_seqs=64, max_num_batched_tokens=512, kv_reason="half of 1.5 GB free", load_s=0.4,
)  # fmt: skip


def test_the_text_says_what_was_taken_and_why() -> None:
    text = announcement(INFO, CacheConfig(), HTTPConfig(port=8123), "my-model", 1.25)
    for fact in ("bfloat16, 256.5 MiB", "avx512, 2 threads", "703.1 MiB", "16 tokens per block, 46,080 bytes per token",
                 "half of 1.5 GB free", "1.25 s", "http://127.0.0.1:8123", "my-model"):  # fmt: skip
        assert fact in text
    assert all(len(line) <= 100 or line.startswith(("curl", "stream")) for line in text.splitlines())


def test_the_text_says_what_of_the_checkpoint_is_not_used() -> None:
    info = msgspec.structs.replace(INFO, weights_unused="3 tensors of what is not text (images, for instance)")
    assert "not used   3 tensors of what is not text" in announcement(info, CacheConfig(), HTTPConfig(), "m", 1.0)
    assert "not used" not in announcement(INFO, CacheConfig(), HTTPConfig(), "m", 1.0)


def test_the_text_says_how_memory_is_shared_swapped_and_erased() -> None:
    plain = announcement(INFO, CacheConfig(), HTTPConfig(), "m", 1.0)
    assert "cached and shared, the least recently used make room first" in plain
    assert "none: preempted requests are computed again" in plain and "off (--erase-freed-blocks)" in plain
    info = msgspec.structs.replace(
        INFO, num_host_blocks=256, bytes_per_block=4096, block_size_reason="16 wastes 1.5 % of 512 tokens"
    )
    cache = CacheConfig(eviction="cost", erase_freed_blocks=True)
    text = announcement(info, cache, HTTPConfig(), "m", 1.0)
    for fact in ("1.0 MiB of host memory, 256 blocks", "16 wastes 1.5 % of 512 tokens", "every freed block is zeroed",
                 "the cheapest to compute again"):  # fmt: skip
        assert fact in text
    assert "not cached" in announcement(info, CacheConfig(enable_prefix_caching=False), HTTPConfig(), "m", 1.0)


@pytest.mark.parametrize("name", ["orca-oracle", "orca-pow2", "orca-max", "fastertransformer"])
def test_the_text_says_how_a_baseline_keeps_kv(name: str) -> None:
    text = announcement(INFO, CacheConfig(kv_policy=name), HTTPConfig(), "m", 1.0)
    assert f"KV policy  {name}: " in text and "not cached" in text and "none: nobody is preempted" in text
    assert "KV policy" not in announcement(INFO, CacheConfig(), HTTPConfig(), "m", 1.0)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000"),
     ("::1", "http://[::1]:8000"), ("box.local", "http://box.local:8000")],
)  # fmt: skip
def test_the_address_is_one_a_client_can_use(host: str, url: str) -> None:
    assert base_url(HTTPConfig(host=host)) == url


@pytest.mark.parametrize("model", ["smollm2-135m", 'it\'s "odd" $HOME `x`'])
def test_the_curl_line_is_shell(model: str) -> None:
    words = shlex.split(curl_line(HTTPConfig(), model))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8000/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == model and body["stream"] is True


def test_the_snippet_is_python() -> None:
    ast.parse(openai_snippet(HTTPConfig(), "it's odd"))
    ast.parse(openai_snippet(HTTPConfig(api_key=("secret",)), "m"))


@pytest.mark.parametrize("keys", [{"api_key": ("hunter2",)}, {"api_key_file": "hunter2.keys"}])
def test_keys_are_not_printed(keys: dict[str, Any]) -> None:
    text = announcement(INFO, CacheConfig(), HTTPConfig(**keys), "m", 1.0)
    assert "hunter2" not in text and '"none"' not in text
    assert '-H "Authorization: Bearer $OCTAVO_API_KEY"' in text and 'os.environ["OCTAVO_API_KEY"]' in text


def test_a_unix_socket_is_where_the_requests_go() -> None:
    path = "/run/it's here.sock"
    http = HTTPConfig(uds=path)
    text = announcement(INFO, CacheConfig(), http, "m", 1.0)
    assert f"ready on {path}." in text and "8000" not in text and "import OpenAI" not in text
    words = shlex.split(curl_line(http, "m"))
    assert words[:5] == ["curl", "-N", "--unix-socket", path, "http://localhost/v1/chat/completions"]


@pytest.mark.parametrize("uds", [None, "/run/a.sock"])
def test_the_certificate_is_named(uds: str | None) -> None:
    http = HTTPConfig(uds=uds, ssl_certfile="my cert.pem", ssl_keyfile="key.pem")
    words = shlex.split(curl_line(http, "m"))
    assert words[words.index("--cacert") + 1] == "my cert.pem"
    assert words[words.index("-H") - 1].startswith("https://")
    snippet = openai_snippet(http, "m")
    ast.parse(snippet)
    assert "import ssl\n" in snippet and "verify=ssl.create_default_context(cafile='my cert.pem')" in snippet


@pytest.mark.parametrize("key", ["none", "secret"])
def test_the_snippet_makes_its_client(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    snippet = openai_snippet(HTTPConfig(api_key=() if key == "none" else (key,)), "m")
    names: dict[str, Any] = {}
    exec(snippet[: snippet.index("messages =")], names)
    with names["client"] as client:
        assert client.api_key == key
