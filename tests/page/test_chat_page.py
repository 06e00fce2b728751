"""The chat page as somebody at a keyboard meets it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.server_process import ServerProcess

pytestmark = pytest.mark.page

ENTER, ESCAPE, UP, ALT, SHIFT = "\ue007", "\ue00c", "\ue013", "\ue00a", "\ue008"
SHOTS = os.environ.get("OCTAVO_SCREENSHOTS")
"""A folder for pictures of what the tests see."""

HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script> [x](javascript:window.hacked=1)"
LONG = "\n\n".join(
    f"## Part {i}\n\nSome *words* with `code` and **weight**: " + "lorem ipsum " * 30 + "\n\n"
    f"1. one\n2. two\n   - inner\n\n| name | value |\n|---|--:|\n| a{i} | {i} |\n\n"
    f"```python\nprint({i}, {'x' * 200!r})\n```"
    for i in range(40)
)


class Page:
    """The page, by what is on it."""

    def __init__(self, browser: Any, server: ServerProcess) -> None:
        self.browser = browser
        browser.get(server.url)
        self.wait(lambda: self.js("return document.activeElement.id") == "prompt")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def keys(self, *words: str) -> None:
        self.browser.switch_to.active_element.send_keys(*words)

    def say(self, text: str) -> None:
        self.js("document.getElementById('prompt').focus()")
        self.keys(text, ENTER)

    def texts(self, role: str) -> list[str]:
        query = f"return [...document.querySelectorAll('.message.{role} > .body')].map((body) => body.innerText)"
        texts: list[str] = self.js(query)
        return texts

    @property
    def is_busy(self) -> bool:
        return bool(self.js("return !document.getElementById('stop').hidden"))

    @property
    def numbers(self) -> str:
        shown: str = self.js("return document.querySelector('.message.assistant:last-child .meta')?.innerText ?? ''")
        return shown

    def set(self, **fields: Any) -> None:
        for name, value in fields.items():
            script = "const field = document.forms.sampling.elements[arguments[0]]; field.value = arguments[1];"
            self.js(script + "field.dispatchEvent(new Event('input', {bubbles: true}))", name, str(value))

    def show(self, messages: list[dict[str, Any]]) -> None:
        """As if these had been said."""
        self.js("sessionStorage.setItem('octavo.messages', arguments[0])", json.dumps(messages))
        self.browser.refresh()
        self.wait(lambda: self.js("return document.querySelectorAll('.message').length") == len(messages))

    def wait(self, condition: Callable[[], Any], limit_s: float = 30) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, self.js("return document.body.innerText")
            time.sleep(0.02)

    def shoot(self, name: str) -> None:
        if SHOTS:
            self.browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))

    @property
    def left_below(self) -> float:
        """Pixels of the conversation below the view."""
        script = "const e = document.querySelector('main'); return e.scrollHeight - e.scrollTop - e.clientHeight"
        return float(self.js(script))

    def next_frames(self) -> None:
        """Two frames later: what a change of size leads to has been done."""
        self.browser.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    @property
    def is_too_wide(self) -> bool:
        return bool(self.js("const e = document.scrollingElement; return e.scrollWidth > e.clientWidth"))


@pytest.fixture(scope="module")
def talker(start_server: Any) -> ServerProcess:
    server: ServerProcess = start_server(model="smollm2-135m")
    return server


@pytest.fixture
def page(browser: Any, talker: ServerProcess) -> Page:
    return Page(browser, talker)


def test_type_stream_and_count(page: Page) -> None:
    page.shoot("empty")
    page.set(temperature=0, max_tokens=200)
    page.say("Write a Python function that reverses a string, and say how it works.")
    page.wait(lambda: page.is_busy and len("".join(page.texts("assistant"))) > 20)
    growing = page.texts("assistant")[0]
    page.wait(lambda: not page.is_busy)
    (answer,) = page.texts("assistant")
    assert len(answer) > len(growing), "it came in pieces"
    assert "tokens/s" in page.numbers and "first after" in page.numbers and "in all" in page.numbers
    assert page.js("return document.activeElement.id") == "prompt"
    page.shoot("answer")
    page.say("Thank you!")
    page.wait(lambda: not page.is_busy and len(page.texts("assistant")) == 2)
    assert "cached" in page.numbers, "the conversation before it is found in the cache"


def test_stop_with_the_keyboard(page: Page, talker: ServerProcess) -> None:
    page.set(max_tokens=2000, min_p=0.1, temperature=0.7)
    page.say("Count from one to a thousand in words.")
    page.wait(lambda: len("".join(page.texts("assistant"))) > 10)
    page.keys(ESCAPE)
    page.wait(lambda: not page.is_busy, 3)
    talker.wait_metric("octavo:num_requests_running", 0, 3)
    assert "stopped" in page.numbers
    said = page.texts("assistant")
    time.sleep(0.3)
    assert page.texts("assistant") == said


def test_answer_again_and_edit(page: Page) -> None:
    page.set(max_tokens=12, temperature=1.5)
    page.say("Name an animal.")
    page.wait(lambda: not page.is_busy and page.texts("assistant"))
    first = page.texts("assistant")
    for _ in range(5):
        page.keys(ALT + "r" + ALT)
        page.wait(lambda: not page.is_busy and page.numbers)
        if page.texts("assistant") != first:
            break
    assert len(page.texts("assistant")) == 1 and page.texts("assistant") != first
    page.keys(UP)
    page.wait(lambda: page.js("return document.activeElement.parentElement.className") == "editor")
    page.keys(" Only one.", ENTER)
    page.wait(lambda: not page.is_busy and page.texts("user") == ["Name an animal. Only one."])
    assert len(page.texts("assistant")) == 1
    page.keys(ALT + "n" + ALT)
    page.wait(lambda: page.texts("user") == [])


def test_long_markdown_in_wide_and_narrow_windows(page: Page) -> None:
    page.show([{"role": "user", "content": "Long, please." * 40}, {"role": "assistant", "content": LONG, "meta": {}}])
    for width in (1280, 500, 360):
        page.browser.set_window_size(width, 860)
        assert not page.is_too_wide, width
        page.shoot(f"markdown-{width}")
    counts = page.js(
        "return ['h2', 'table', 'pre', 'ol ul'].map((tag) => document.querySelectorAll('.body ' + tag).length)"
    )
    assert counts == [40] * 4
    page.browser.set_window_size(1280, 860)
    page.keys(ALT + "s" + ALT)
    page.wait(lambda: page.js("return !document.getElementById('settings').hidden"))
    assert not page.is_too_wide
    page.shoot("settings")


@pytest.mark.parametrize("place", ["end", "middle"])
def test_the_end_stays_in_view_when_sizes_change(page: Page, place: str) -> None:
    """Windows and settings that open and close, and a message box that grows: the end stays in view if it was, and
    nobody who reads further up is taken there."""
    page.show([{"role": "user", "content": "Long, please."}, {"role": "assistant", "content": LONG, "meta": {}}])
    page.wait(lambda: page.left_below < 2)
    if place == "middle":
        page.js("const e = document.querySelector('main'); e.scrollTop = e.scrollHeight / 2")
        page.next_frames()
    for width, height in ((1280, 600), (500, 860), (360, 600), (1280, 860)):
        page.browser.set_window_size(width, height)
        page.next_frames()
        assert (page.left_below < 2) is (place == "end"), (width, height, page.left_below)
        page.shoot(f"{place}-{width}x{height}")
    for _ in range(2):
        page.keys(ALT + "s" + ALT)
        page.next_frames()
        assert (page.left_below < 2) is (place == "end"), page.left_below
    page.js("document.getElementById('prompt').focus()")
    page.keys(*["line", SHIFT + ENTER + SHIFT] * 8)
    page.next_frames()
    assert (page.left_below < 2) is (place == "end"), page.left_below
    page.shoot(f"{place}-long-message")


def test_an_answer_is_followed_through_a_change_of_size(page: Page) -> None:
    part = LONG[:2000]
    page.show([{"role": "user", "content": "Long, please."}, {"role": "assistant", "content": part, "meta": {}}])
    page.set(max_tokens=2000, min_p=0.1, temperature=0.7)
    page.say("Count from one to a thousand in words.")
    for height in (600, 860, 500):
        seen = len(page.texts("assistant")[-1])
        page.browser.set_window_size(900, height)
        page.wait(lambda seen=seen: len(page.texts("assistant")[-1]) > seen + 20)  # type: ignore[misc]
        page.next_frames()
        assert page.is_busy and page.left_below < 60, height
    page.shoot("followed")
    page.keys(ESCAPE)
    page.wait(lambda: not page.is_busy)


def test_a_growing_answer_is_drawn_fast(page: Page) -> None:
    """An answer of 60 kB that comes in 3000 pieces: drawn within a few milliseconds each time."""
    script = """
    const done = arguments[arguments.length - 1];
    import('/chat/view.js').then(({ Markdown, element }) => {
      const root = document.body.appendChild(element('div'));
      const markdown = new Markdown(root);
      const begin = performance.now();
      for (let end = 20; end < arguments[0].length; end += 20) markdown.update(arguments[0].slice(0, end));
      root.remove();
      done((performance.now() - begin) / (arguments[0].length / 20));
    });"""
    page.browser.set_script_timeout(60)
    assert page.browser.execute_async_script(script, (LONG * 3)[:60_000]) < 8


def test_what_a_model_writes_is_text(page: Page) -> None:
    page.show([{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE, "meta": {}}])
    time.sleep(0.3)
    assert page.js("return window.hacked") is None
    assert page.texts("user") == [HOSTILE] and "<img src=x" in page.texts("assistant")[0]
    assert page.js("return document.querySelectorAll('.body img, .body script, .body a').length") == 0


def test_themes(page: Page) -> None:
    seen = set()
    for name in ("auto", "light", "dark"):
        assert page.js("return document.getElementById('theme').textContent") == f"Theme: {name}"
        seen.add(page.js("return getComputedStyle(document.body).backgroundColor"))
        page.shoot(f"theme-{name}")
        page.js("document.getElementById('theme').click()")
    assert len(seen) == 2


def test_a_key_is_asked_for(browser: Any, start_server: Any) -> None:
    server: ServerProcess = start_server("--api-key", "sk-page", "--num-blocks", "100")
    page = Page.__new__(Page)
    page.browser = browser
    browser.get(server.url)
    page.wait(lambda: page.js("return document.activeElement.name") == "key")
    assert "API key" in page.js("return document.getElementById('notice').innerText")
    page.shoot("key")
    page.keys("sk-page", "\t")
    page.wait(lambda: page.js("return document.getElementById('model').textContent") == "tiny")
    page.set(max_tokens=5)
    page.say("Hello")
    page.wait(lambda: page.texts("assistant") and not page.is_busy)
    assert page.texts("assistant")[0] and "5 tokens" in page.numbers
