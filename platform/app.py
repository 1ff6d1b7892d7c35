"""The gateway as an ASGI application, composed from what it is given; nothing at import."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from loraplex.platform.api import adapters, chat, health, models, text_completions
from loraplex.platform.api.admin import admin
from loraplex.platform.api.bodies import shown_name
from loraplex.platform.console import router as console
from loraplex.platform.console.composition import Console, build_console
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.middleware import BodyBounds, BodyLimit, RequestContext
from loraplex.platform.problems import reply_for
from loraplex.platform.services import Resources, Services, build_services
from loraplex.platform.uploads import sweep


def create_app(resources: Resources) -> FastAPI:
    """Return the gateway. Its lifespan ends when all open requests are settled."""
    services = build_services(resources)
    settings = resources.settings
    app = FastAPI(title="Loraplex", lifespan=_lifespan, redirect_slashes=False)
    app.state.services = services
    app.state.console = build_console(services)
    app.add_middleware(
        BodyLimit,
        bounds=BodyBounds(settings.max_body_bytes, settings.body_timeout_s),
        upload_bounds=BodyBounds(settings.max_upload_bytes, settings.upload_timeout_s),
    )
    # Added last, so it is outermost: it answers the errors of all others.
    app.add_middleware(RequestContext, now=resources.now, entropy=resources.entropy)
    app.add_exception_handler(HTTPException, _answer_route_error)
    app.add_exception_handler(RequestValidationError, _answer_query_error)
    for router in (
        chat.router,
        text_completions.router,
        models.router,
        adapters.router,
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
    await asyncio.to_thread(sweep, resources.settings, resources.clock())
    console_parts: Console = app.state.console
    background = [
        asyncio.create_task(services.open_requests.keep_renewing(), name="renew-holds"),
        asyncio.create_task(services.last_used.run(resources.database), name="last-used-keys"),
        asyncio.create_task(
            services.admin_last_used.run(resources.database), name="last-used-admin-keys"
        ),
        asyncio.create_task(console_parts.sampler.run(), name="console-sampler"),
    ]
    try:
        yield
    finally:
        await services.open_requests.drain(resources.settings.drain_timeout_s)
        services.prompts.close()
        for task in background:
            task.cancel()
        for task in background:
            with suppress(asyncio.CancelledError):
                await task


async def _answer_query_error(request: Request, error: Exception) -> Response:
    """Parameters of the path and query, which the framework checks; bodies are read by us."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    name = shown_name(str(fault["loc"][-1]))
    return await _answer_route_error(request, InvalidRequest(f"{name}: {fault['msg']}.", name))


async def _answer_route_error(request: Request, error: Exception) -> Response:
    reply = reply_for(error, request.scope)
    response = Response(reply.body, reply.status)
    response.raw_headers.extend(reply.headers)
    return response
