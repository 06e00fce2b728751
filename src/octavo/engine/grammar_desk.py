"""Where requests wait while their grammars are compiled, beside the loop and not in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

import msgspec

from octavo.errors import OctavoError, RequestError
from octavo.messages import EngineRequest
from octavo.structured import Grammar

if TYPE_CHECKING:
    from octavo.core.step import Grammars

COMPILE_LIMIT_S = 5.0
"""A compilation that takes longer is given up, and its request refused."""

MAX_COMPILING = 2
"""Compilations at once, so that a hard one does not keep the next one waiting."""

MAX_LOST = 4
"""Compilations that were given up and have not ended yet. With so many no new one begins before one of them ends."""


class Ready(msgspec.Struct):
    """A request that waits no more."""

    request: EngineRequest
    """With the id of its grammar."""
    error: OctavoError | None
    """Why it is refused."""
    aborted: set[int]
    """Of its answers, those that were given up meanwhile; never all."""


class _Compilation(threading.Thread):
    """One grammar on its way, on a thread of its own."""

    def __init__(self, grammars: Grammars, grammar: Grammar, news: threading.Event, clock: Callable[[], float]) -> None:
        super().__init__(name="octavo-grammar", daemon=True)
        self._grammars = grammars
        self._grammar = grammar
        self._news = news
        self._clock = clock
        self.began_s: float | None = None
        """When compiling began; None while what all grammars need is loaded."""
        self.result: int | OctavoError | None = None
        """The grammar's id, or why there is none; None while it runs."""

    def run(self) -> None:
        try:
            self._grammars.prepare(self._grammar.param)
            self.began_s = self._clock()
            self.result = self._grammars.compile(self._grammar)
        except OctavoError as error:
            self.result = error
        except BaseException as error:  # the Rust library's panics are BaseExceptions
            param = self._grammar.param
            self.result = RequestError(param, message=f"{param}: cannot be compiled ({type(error).__name__})")
        self._news.set()


class _Waiting:
    def __init__(self, request: EngineRequest, grammar: Grammar) -> None:
        self.request = request
        self.grammar = grammar
        self.compilation: _Compilation | None = None
        self.aborted: set[int] = set()

    @property
    def unwanted(self) -> bool:
        return len(self.aborted) >= self.request.sampling.n


class GrammarDesk:
    """Compiles grammars, and keeps those that live requests need.

    All methods are for the thread of the loop.

    Args:
        grammars: The executor's; None where it has none, and every grammar is refused.
        clock: Seconds.
    """

    def __init__(self, grammars: Grammars | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._grammars = grammars
        self._clock = clock
        self._waiting: list[_Waiting] = []
        """In the order of their arrival."""
        self._lost: list[_Compilation] = []
        self._in_use: dict[int, int] = {}
        """Grammar of each request that went on to the core."""
        self._news = threading.Event()

    @property
    def has_waiting(self) -> bool:
        """Whether a request waits here."""
        return bool(self._waiting)

    @property
    def has_grammars(self) -> bool:
        """Whether grammars are kept for requests that went on."""
        return bool(self._in_use)

    def take(self, request: EngineRequest, grammar: Grammar) -> None:
        """Let a request wait for its grammar.

        Raises:
            RequestError: If there is nobody to compile it.
        """
        if self._grammars is None:
            raise RequestError(grammar.param, message=f"{grammar.param} is not supported by this engine")
        self._waiting.append(_Waiting(request, grammar))
        self._begin(self._grammars)

    def abort(self, request_id: int, index: int | None) -> None:
        """Give up a request that waits here, or one of its answers."""
        for waiting in self._waiting:
            if waiting.request.request_id == request_id:
                first, count = waiting.request.first_index, waiting.request.sampling.n
                waiting.aborted |= set(range(first, first + count)) if index is None else {index}

    def wait(self, timeout_s: float) -> None:
        """Until a compilation has ended, or for so long."""
        self._news.wait(timeout_s)

    def ready(self) -> list[Ready]:
        """Those that wait no more, the first to come first. Nobody is told of requests that were given up."""
        self._news.clear()
        if self._grammars is None:
            return []
        found, left = [], []
        for waiting in self._waiting:
            result = self._result(waiting)
            if result is None:
                left.append(waiting)
            elif not waiting.unwanted:
                found.append(self._ready(waiting, result))
            elif isinstance(result, int):
                self._grammars.release(result)
        self._waiting = left
        self._begin(self._grammars)
        return found

    def forget_ended(self, live: Container[int]) -> None:
        """Let go of the grammars of requests that are not among `live`."""
        for request_id in [i for i in self._in_use if i not in live]:
            assert self._grammars is not None
            self._grammars.release(self._in_use.pop(request_id))

    def _ready(self, waiting: _Waiting, result: int | OctavoError) -> Ready:
        if isinstance(result, OctavoError):
            return Ready(waiting.request, result, waiting.aborted)
        self._in_use[waiting.request.request_id] = result
        return Ready(msgspec.structs.replace(waiting.request, grammar_id=result), None, waiting.aborted)

    def _result(self, waiting: _Waiting) -> int | OctavoError | None:
        compilation = waiting.compilation
        if compilation is None:
            return None
        result, began_s = compilation.result, compilation.began_s
        if result is not None or began_s is None or self._clock() - began_s < COMPILE_LIMIT_S:
            return result
        self._lost.append(compilation)
        param = waiting.grammar.param
        return RequestError(param, message=f"{param}: takes longer than {COMPILE_LIMIT_S:g} s to compile")

    def _begin(self, grammars: Grammars) -> None:
        for lost in [lost for lost in self._lost if lost.result is not None]:
            self._lost.remove(lost)
            if isinstance(lost.result, int):
                grammars.release(lost.result)
        num_running = sum(waiting.compilation is not None for waiting in self._waiting)
        for waiting in self._waiting:
            if num_running >= MAX_COMPILING or len(self._lost) >= MAX_LOST:
                return
            if waiting.compilation is None:
                waiting.compilation = _Compilation(grammars, waiting.grammar, self._news, self._clock)
                waiting.compilation.start()
                num_running += 1
