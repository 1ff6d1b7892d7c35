"""The gateway as an ASGI application, composed from what it is given; nothing at import."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from loraplex.platform import resumable
from loraplex.platform.api import (
    adapter_uploads,
    adapters,
    audit,
    chat,
    health,
    limits,
    models,
    tenancy,
    text_completions,
)
from loraplex.platform.api.admin import admin
from loraplex.platform.api.bodies import shown_name, unknown_parameter
from loraplex.platform.api.faults import words_for
from loraplex.platform.console import router as console
from loraplex.platform.console.composition import Console, build_console
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.middleware import BodyBounds, BodyLimit, RequestContext
from loraplex.platform.problems import reply_for
from loraplex.platform.retention import keep_forgetting
from loraplex.platform.services import Resources, Services, build_services
from loraplex.platform.settings import listed_networks

_log = logging.getLogger(__name__)


def create_app(resources: Resources) -> FastAPI:
    """Return the gateway. Its lifespan ends when all open requests are settled."""
    services = build_services(resources)
    settings = resources.settings
    app = FastAPI(
        title="Loraplex",
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,  # its page loads scripts of others; /openapi.json is what tools read
        redoc_url=None,
    )
    app.state.services = services
    app.state.console = build_console(services)
    app.add_middleware(
        BodyLimit,
        bounds=BodyBounds(settings.max_body_bytes, settings.body_timeout_s),
        upload_bounds=BodyBounds(settings.max_upload_bytes, settings.upload_timeout_s),
    )
    # Outside of all others, since it answers their errors.
    app.add_middleware(RequestContext, now=resources.now, entropy=resources.entropy)
    trusted = listed_networks(settings.trusted_proxies)
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=trusted)
    app.add_exception_handler(HTTPException, _answer_route_error)
    app.add_exception_handler(RequestValidationError, _answer_query_error)
    for router in (
        chat.router,
        text_completions.router,
        models.router,
        adapter_uploads.router,  # before those whose names could be `uploads`
        adapters.router,
        tenancy.router,
        limits.router,
        audit.router,
        health.router,
        admin.router,
        console.router,
    ):
        app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    services: Services = app.state.services
    resources = services.resources
    settings = resources.settings
    await resumable.tidy(resources)
    await services.adapter_deletions.sweep()  # so that others know of this gateway, too
    console_parts: Console = app.state.console
    try:
        async with _beside(
            {
                "adapter-deletions": services.adapter_deletions.run(),
                "adapter-bytes": resources.adapter_bytes.run(),
                "retention": keep_forgetting(
                    resources.database, settings.usage_days, resources.now
                ),
                "tenant-deletions": services.tenant_deletions.run(),
                "gateway-lease": services.adapter_deletions.keep_saying(),
                "adapter-pins": services.adapter_pins.run(),
                "standing-watch": services.standing_watch.run(),
                "renew-holds": services.open_requests.keep_renewing(),
                "reaper": services.reaper.run(),
                "reservation-sweep": services.reservation_sweep.run(),
                "reconciliation": services.reconciliation.run(),
                "last-used-keys": services.last_used.run(resources.database),
                "last-used-admin-keys": services.admin_last_used.run(resources.database),
                "console-sampler": console_parts.sampler.run(),
            }
        ):
            try:
                yield
            finally:
                await services.open_requests.settle_all()
                services.prompts.close()
                await resources.adapter_bytes.settled()
                await resources.templates.close()
    finally:
        # Last, when nothing here says any more that this gateway runs.
        await services.adapter_deletions.leave()


@asynccontextmanager
async def _beside(works: dict[str, Coroutine[Any, Any, None]]) -> AsyncGenerator[None, None]:
    """Run works without end beside the block, by name. One that dies is told when it does, and
    stops neither the block nor the others."""
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    for task in tasks:
        task.add_done_callback(_tell_death)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s died and is not started again", task.get_name(), exc_info=task.exception())


async def _answer_query_error(request: Request, error: Exception) -> Response:
    """Parameters of the path and query, which the framework checks; bodies are read by us."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    # ("query", "group_by", 0) is a fault of group_by.
    name = shown_name(str(fault["loc"][:2][-1]))
    refusal = InvalidRequest(f"{name}: {words_for(fault)}.", name)
    if fault["type"] == "extra_forbidden":
        refusal = unknown_parameter(name)
    return await _answer_route_error(request, refusal)


async def _answer_route_error(request: Request, error: Exception) -> Response:
    reply = reply_for(error, request.scope)
    response = Response(reply.body, reply.status)
    response.raw_headers.extend(reply.headers)
    return response
