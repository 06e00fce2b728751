"""The server's two entry points. Neither imports an HTTP library until it is called: see `serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.config import EngineConfig, HTTPConfig

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from octavo.engine.async_engine import AsyncEngine


def create_app(engine: AsyncEngine, http: HTTPConfig) -> Starlette:
    """The ASGI application for a running engine, for `serve` or any other ASGI server."""
    from octavo.server.routes import build_app

    return build_app(engine, http)


def serve(
    config: EngineConfig,
    http: HTTPConfig,
    on_ready: Callable[[AsyncEngine], None] | None = None,
    on_loading: Callable[[], object] = lambda: None,
) -> None:
    """Load a model and serve it until SIGTERM or SIGINT. Must run in the main thread.

    The first signal drains: new requests get 503, running ones have `http.shutdown_timeout` seconds to finish, then
    this returns. A second one cuts them off.

    Args:
        on_ready: Called once requests are accepted.
        on_loading: Called once the model is going to be loaded.

    Raises:
        ConfigError: If the address cannot be bound, or a file or folder that `http` names cannot be used; nothing has
            been loaded then.
        ModelError: If the model cannot be loaded.
        SystemExit: With 128 plus the signal's number, when a second signal cut the drain short.
    """
    import asyncio

    from octavo.server.launch import Launch, loop_factory

    launch = Launch(config, http, on_ready, on_loading)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(launch.run())
    if launch.forced_by is not None:
        raise SystemExit(128 + launch.forced_by)
