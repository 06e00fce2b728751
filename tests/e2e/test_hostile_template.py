"""A model whose chat template does its worst: its own requests fail, and nobody else notices."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from support.server_process import Reply, ServerProcess

TEMPLATE = """
{%- set what = messages[0].content %}
{%- if what == 'slow' %}{% set a = 'x' * 30000000 %}{% for i in range(100000) %}{% set b = a.find('y') %}{% endfor %}
{%- elif what == 'large' %}{{ ['x' * 30000000] * 1000 }}
{%- elif what == 'long' %}{{ 'x y ' * 5000000 }}
{%- else %}{{ what }}{% endif %}"""


def test_others_go_on(start_server: Any, tmp_path: Path) -> None:
    template = tmp_path / "hostile.jinja"
    template.write_text(TEMPLATE)
    server: ServerProcess = start_server("--chat-template", str(template))

    def chat(text: str) -> Reply:
        messages = [{"role": "user", "content": text}]
        return server.post("/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 3})

    assert chat("a").status == 200
    found: list[Reply] = []
    slow = threading.Thread(target=lambda: found.append(chat("slow")))
    slow.start()
    waits = []
    while slow.is_alive():
        start = time.perf_counter()
        assert server.get("/health").status == 200
        waits.append(time.perf_counter() - start)
        time.sleep(0.05)
    assert len(waits) > 20 and max(waits) < 1
    assert found[0].status == 400 and "longer than 5 seconds" in found[0].error["message"]
    large = chat("large")
    assert large.status == 400 and "a text of more than" in large.error["message"]
    start = time.perf_counter()
    long = chat("long")
    assert long.status == 400 and "messages has 20000000 characters" in long.error["message"]
    assert time.perf_counter() - start < 3
    assert chat("a").status == 200
