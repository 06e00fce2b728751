"""Tool calls as JSON, in the dress that each family of models was taught."""

from __future__ import annotations

from octavo.engine.parsers.calls import CallScanner, JSONCallScanner
from octavo.engine.parsers.json_text import pass_value
from octavo.engine.parsers.scanner import END, Steps


class HermesParser(JSONCallScanner):
    """Hermes 2 Pro, Qwen 2.5 and 3, SmolLM2: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one in each
    pair of tags or a list."""

    marks = ("<tool_call>",)

    def read_calls(self, mark: str) -> Steps[None]:
        complete = yield from self.read_list((yield from self.next_visible()))
        if self.call_begun:
            if not complete:
                self.give_back_unused()
            yield from self.skip("</tool_call>")


class Llama3JSONParser(JSONCallScanner):
    """Llama 3.1 to 4: `{"name": ..., "parameters": {...}}`, after `<|python_tag|>` or without a mark, with the name of
    a tool there is. Semicolons may stand between calls."""

    marks = ("<|python_tag|>",)
    openers = "{"
    needs_known_name = True

    def read_calls(self, mark: str) -> Steps[None]:
        first = mark if mark == "{" else (yield from self.next_visible())
        if not (yield from self.read_list(first)):
            return
        if (yield from self.next_visible()) == ";" and (yield from self.next_visible()) == "{":
            self.give_back()
            self.use()


class GraniteParser(JSONCallScanner):
    """Granite 3, Phi-4-mini: `<|tool_call|>[{"name": ..., "arguments": {...}}]`."""

    marks = ("<|tool_call|>", "<tool_call>", "<function_call>")

    def read_calls(self, mark: str) -> Steps[None]:
        complete = yield from self.read_list((yield from self.next_visible()))
        if self.call_begun:
            if not complete:
                self.give_back_unused()
            yield from self.skip(mark.replace("<", "</", 1) if mark != "<|tool_call|>" else "<|/tool_call|>")


class MistralParser(JSONCallScanner):
    """Mistral: `[TOOL_CALLS]` and a list of objects, or since tokenizer version 11 `[TOOL_CALLS]name{...}`, with
    `[CALL_ID]id` and `[ARGS]` before the arguments in some versions."""

    marks = ("[TOOL_CALLS]",)

    def read_calls(self, mark: str) -> Steps[None]:
        first = yield from self.next_visible()
        if first in ("[", "{"):
            yield from self.read_list(first)
            return
        name = ""
        while first != END and (first.isalnum() or first in "_-."):
            name += first
            first = yield from self.next()
        call_id = ""
        if first == "[":
            self.give_back()
            if (yield from self._skip_inside("[CALL_ID]")):
                while (char := (yield from self.next())).isalnum() or char in ("_", "-"):
                    call_id += char
                self.give_back()
            yield from self._skip_inside("[ARGS]")
            first = yield from self.next()
        if first.isspace():
            first = yield from self.next_visible()
        if not name or first != "{":
            return
        sink = self.argue(self.begin(name, call_id or None))
        yield from pass_value(self, first, sink)

    def _skip_inside(self, mark: str) -> Steps[bool]:
        """Read over `mark` if that is what comes. It stays unused: there is no call yet."""
        for count, expected in enumerate(mark, 1):
            if (yield from self.next()) != expected:
                self.give_back(count)
                return False
        return True


class RequiredCallsParser(JSONCallScanner):
    """The whole answer is a list of calls, because generation was held to it. Where it is cut, what has not become a
    call is nothing: it was never meant as text."""

    def run(self) -> Steps[None]:
        first = yield from self.next_visible()
        yield from self.read_list(first)
        while first != END:
            first = yield from self.next()


class NamedCallParser(CallScanner):
    """The whole answer is the arguments of one named tool, because generation was held to it."""

    def run(self) -> Steps[None]:
        (name,) = self.tool_names
        char = yield from self.next_visible()
        if char == END:
            return
        sink = self.argue(self.begin(name))
        while char != END:
            sink(char)
            char = yield from self.next()
