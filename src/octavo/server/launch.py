"""From two configs to a served port, and back to silence: sockets, signals, drain."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config import EngineConfig, HTTPConfig
from octavo.engine.start_up import no_collection

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.host import Host
    from octavo.server.lifecycle import Lifecycle

KEEP_ALIVE_S = 75
"""How long an idle connection stays open. Longer than the usual load balancer's 60 s, so that it is never the server
that closes a connection just as the balancer uses it again."""

LAST_WORDS_S = 2.0
"""Time for replies already written to leave, once requests have ended."""

FORCED_EXIT_S = 3.0
"""Time a forced shutdown may take before the process ends without ceremony."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("octavo.server")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed, else asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


class Launch:
    """One run of the server.

    The port is bound first, so that a taken one is reported before a model is read. Then the engine starts (in its own
    process it reads the model meanwhile) while this process imports the HTTP libraries.
    """

    def __init__(
        self,
        config: EngineConfig,
        http: HTTPConfig,
        on_ready: Callable[[AsyncEngine], None] | None = None,
        on_loading: Callable[[], object] = lambda: None,
    ) -> None:
        self._config = config
        self._http = http
        self._on_ready = on_ready
        self._on_loading = on_loading
        self._stop = asyncio.Event()
        self._lifecycle: Lifecycle | None = None
        self.forced_by: int | None = None
        """The signal that cut the drain short."""

    async def run(self) -> None:
        """Serve until a signal has been handled to its end."""
        _configure_logging(self._http.log_level)
        from octavo.server.listen import listening, raise_file_limit

        _check_files(self._http)
        raise_file_limit()
        with listening(self._http) as listener, self._signals():
            self._on_loading()
            with no_collection():
                engine = await self._start_engine()
            try:
                if not self._stop.is_set():
                    await self._serve(engine, listener)
            finally:
                await self._close(engine)

    async def _start_engine(self) -> AsyncEngine:
        host = _begin_host(self._config.execution.host)
        from octavo.engine.async_engine import AsyncEngine

        starting = asyncio.ensure_future(AsyncEngine.start(self._config, host, seed=self._http.seed))
        await asyncio.sleep(0)  # let it look for the model before the imports keep this thread busy
        import octavo.server.http_protocol
        import octavo.server.routes  # noqa: F401

        return await starting

    async def _serve(self, engine: AsyncEngine, listener: socket.socket) -> None:
        from octavo.server.routes import build_app

        app = build_app(engine, self._http)
        self._lifecycle = app.state.context.lifecycle
        app.state.batching.start()
        server = _uvicorn_server(app, self._http, lambda: self._on_ready and self._on_ready(engine))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            await self._drain(self._lifecycle)
        await app.state.batching.stop()
        server.should_exit = True
        await serving

    async def _drain(self, lifecycle: Lifecycle) -> None:
        lifecycle.draining = True
        if lifecycle.num_running:
            limit = self._http.shutdown_timeout
            log.info("draining: %d requests have %g s to finish", lifecycle.num_running, limit)
        if not await lifecycle.wait_idle(self._http.shutdown_timeout):
            log.warning("cutting off %d requests", lifecycle.num_running)
            lifecycle.cut()
            await lifecycle.wait_idle(LAST_WORDS_S)

    async def _close(self, engine: AsyncEngine) -> None:
        try:
            await asyncio.wait_for(engine.close(), FORCED_EXIT_S if self.forced_by is not None else None)
        except TimeoutError:
            log.warning("the engine did not close in time")

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if not self._stop.is_set():
            self._stop.set()
        elif self.forced_by is None:
            self.forced_by = number
            if self._lifecycle is not None:
                self._lifecycle.cut()
            asyncio.get_running_loop().call_later(FORCED_EXIT_S, os._exit, 128 + number)
        else:
            os._exit(128 + number)


def _begin_host(name: str) -> Host | None:
    """An engine's process that is under way, so that it imports its libraries while this one does; None where the
    engine has none of its own."""
    if name != "process":
        return None
    from octavo.engine.process_host import ProcessHost

    host = ProcessHost()
    host.begin()
    return host


def _check_files(http: HTTPConfig) -> None:
    """What is wrong with the files and folders it names is told before a model is read.

    Raises:
        ConfigError: If one cannot be used.
    """
    from octavo.server.listen import check_certificate

    check_certificate(http)
    _check_sampling(http)
    if http.default_chat_template_kwargs != HTTPConfig().default_chat_template_kwargs:
        from octavo.server.template_defaults import template_defaults

        template_defaults(http)
    if http.api_key_file is not None:
        from octavo.server.key_file import read_key_file

        read_key_file(http.api_key_file)
    if http.files_dir is not None:
        from octavo.server.batches.folder import Folder

        Folder(Path(http.files_dir)).close()


def _check_sampling(http: HTTPConfig) -> None:
    """There is no mistake in the defaults, which need no import."""
    named, usual = (http.generation_config, http.override_generation_config), HTTPConfig()
    if named != (usual.generation_config, usual.override_generation_config):
        from octavo.server.sampling_defaults import sampling_defaults

        sampling_defaults(http, {})


def _configure_logging(level: str) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")  # unless the caller has done so
    logging.getLogger("octavo").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def _uvicorn_server(app: Any, http: HTTPConfig, on_started: Callable[[], object]) -> Any:
    """A uvicorn server that leaves signals to `Launch` and tells when it listens."""
    import uvicorn

    from octavo.server.http_protocol import protocol_with

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            on_started()

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    return Server(
        uvicorn.Config(
            app,
            http=protocol_with(http),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=http.log_level == "debug",
            ssl_keyfile=http.ssl_keyfile,
            ssl_certfile=http.ssl_certfile,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(LAST_WORDS_S),
        )
    )
