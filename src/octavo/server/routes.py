"""Paths to handlers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from octavo.config import HTTPConfig
from octavo.server.anthropic.routes import CountTokens, Messages
from octavo.server.auth import KV_STATS_PATH, RESET_PATH, Access
from octavo.server.batches.batch_routes import Batches, CancelBatch, OneBatch
from octavo.server.batches.file_routes import File, FileContent, Files
from octavo.server.batches.service import Batching
from octavo.server.chat_page import ChatPage
from octavo.server.context import ServerContext, served_names, system_fingerprint
from octavo.server.envelopes import error_body
from octavo.server.gate import Gate
from octavo.server.kv import KVAuditRoute, KVBlocksRoute, KVResetRoute, KVStatsRoute, PublishedRoute
from octavo.server.lifecycle import Lifecycle
from octavo.server.metrics import ServerMetrics
from octavo.server.openai.chat import ChatCompletions
from octavo.server.openai.completions import Completions
from octavo.server.openai.errors import ErrorReply
from octavo.server.openai.models import Models
from octavo.server.openapi.route import OpenAPI
from octavo.server.page_files import PAGE_FILES
from octavo.server.parsing import answer_format
from octavo.server.responses.routes import InputItems, InputTokensRoute, OneResponse, Responses
from octavo.server.responses.store import ResponseStore
from octavo.server.sampling_defaults import sampling_defaults
from octavo.server.status import Health, Load, Metrics, Ping, Ready, Version
from octavo.server.template_defaults import template_defaults
from octavo.server.tokens import Detokenize, Tokenize

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


def make_context(engine: AsyncEngine, http: HTTPConfig) -> ServerContext:
    """The parts of a server for a running engine.

    Raises:
        ConfigError, ModelFileError: If a sampling parameter given for requests without one cannot be.
    """
    defaults = sampling_defaults(http, engine.generation_config)
    return ServerContext(
        engine=engine,
        http=http,
        metrics=ServerMetrics(engine.info.max_model_len),
        model_names=served_names(http, engine.info),
        fingerprint=system_fingerprint(engine.info, defaults),
        created=int(time.time()),
        lifecycle=Lifecycle(http.request_timeout),
        defaults=defaults,
        template_kwargs=template_defaults(http),
        answer_format=answer_format(http, engine.chat_template_source, engine.tokenizer),
    )


def generation_routes(context: ServerContext, responses: ResponseStore) -> dict[str, ASGIApp]:
    """The routes that generate, by path. A batch may call them too."""
    return {
        "/v1/chat/completions": ChatCompletions(context),
        "/v1/completions": Completions(context),
        "/v1/messages": Messages(context),
        "/v1/responses": Responses(context, responses),
    }


def build_app(engine: AsyncEngine, http: HTTPConfig) -> Starlette:
    """See `octavo.server.app.create_app`. `app.state` has the `context`, and `batching`, which is to be started."""
    context = make_context(engine, http)
    responses = ResponseStore(http.max_stored_bytes)
    generation = generation_routes(context, responses)
    batching = Batching(context, generation)
    app = Starlette(
        routes=_routes(context, generation, batching, responses),
        middleware=[*_cors(http), Middleware(Gate, context=context, access=Access(http))],
        exception_handlers={HTTPException: _no_such_route},
    )
    app.router.redirect_slashes = False  # a redirect would repeat the request's path in its answer
    app.state.context = context
    app.state.batching = batching
    return app


def _cors(http: HTTPConfig) -> list[Middleware]:
    """What lets pages of other origins in; it answers their preflight requests itself, which bring no key."""
    if not http.allowed_origins:
        return []
    from starlette.middleware.cors import CORSMiddleware

    origins, methods, headers = map(list, (http.allowed_origins, http.allowed_methods, http.allowed_headers))
    return [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=headers)]


def _routes(
    context: ServerContext, generation: dict[str, ASGIApp], batching: Batching, responses: ResponseStore
) -> list[Route]:
    models, published, reset = Models(context), PublishedRoute(context), KVResetRoute(context)
    page = ChatPage()
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generation.items()),
        Route("/v1/responses/input_tokens", InputTokensRoute(context, responses), methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", InputItems(responses), methods=["GET"]),
        Route("/v1/responses/{response_id}", OneResponse(responses), methods=["GET", "DELETE"]),
        Route("/v1/messages/count_tokens", CountTokens(context), methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", models, methods=["GET"]),
        Route(KV_STATS_PATH, KVStatsRoute(context), methods=["GET"]),
        Route("/v1/kv/blocks", KVBlocksRoute(context), methods=["GET"]),
        Route("/v1/kv/audit", KVAuditRoute(context), methods=["GET", "POST"]),
        Route("/v1/kv/published", published, methods=["GET", "POST"]),
        Route("/v1/kv/published/{name}", published, methods=["DELETE"]),
        Route("/v1/kv/reset", reset, methods=["POST"]),
        Route(RESET_PATH, reset, methods=["POST"]),
        Route("/v1/files", Files(batching), methods=["GET", "POST"]),
        Route("/v1/files/{file_id}", File(batching), methods=["GET", "DELETE"]),
        Route("/v1/files/{file_id}/content", FileContent(batching), methods=["GET"]),
        Route("/v1/batches", Batches(batching), methods=["GET", "POST"]),
        Route("/v1/batches/{batch_id}", OneBatch(batching), methods=["GET"]),
        Route("/v1/batches/{batch_id}/cancel", CancelBatch(batching), methods=["POST"]),
        Route("/tokenize", Tokenize(context), methods=["POST"]),
        Route("/detokenize", Detokenize(context), methods=["POST"]),
        Route("/health", Health(context), methods=["GET"]),
        Route("/ready", Ready(context), methods=["GET"]),
        Route("/ping", Ping(), methods=["GET", "POST"]),
        Route("/load", Load(context), methods=["GET"]),
        Route("/version", Version(), methods=["GET"]),
        Route("/openapi.json", OpenAPI(), methods=["GET"]),
        Route("/metrics", Metrics(context), methods=["GET"]),
        *(Route(path, page, methods=["GET"]) for path in (PAGE_FILES if context.http.chat_page else ())),
    ]


async def _no_such_route(request: Request, error: Exception) -> Response:
    """What the router itself raises: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        reply = ErrorReply(status=405, message="this path does not take that method", code="method_not_allowed")
    else:
        reply = ErrorReply(status=error.status_code, message="there is no such path", code="not_found")
    return Response(
        error_body(request.scope["path"], reply), reply.status, error.headers, media_type="application/json"
    )
