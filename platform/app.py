"""The gateway as an ASGI application, composed from what it is given; nothing at import."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from loraplex.platform.api import chat, health, models, text_completions
from loraplex.platform.errors import describe
from loraplex.platform.middleware import BodyLimit, RequestContext
from loraplex.platform.services import Resources, Services, build_services


def create_app(resources: Resources) -> FastAPI:
    """Return the gateway. Its lifespan ends when all open requests are settled."""
    services = build_services(resources)
    settings = resources.settings
    app = FastAPI(title="Loraplex", lifespan=_lifespan, redirect_slashes=False)
    app.state.services = services
    app.add_middleware(
        BodyLimit, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
    )
    # Added last, so it is outermost: it answers the errors of all others.
    app.add_middleware(RequestContext, now=resources.now, entropy=resources.entropy)
    app.add_exception_handler(HTTPException, _answer_route_error)
    for router in (chat.router, text_completions.router, models.router, health.router):
        app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    services: Services = app.state.services
    background = [
        asyncio.create_task(services.open_requests.keep_renewing(), name="renew-holds"),
        asyncio.create_task(
            services.last_used.run(services.resources.database), name="last-used-keys"
        ),
    ]
    try:
        yield
    finally:
        await services.open_requests.drain(services.resources.settings.drain_timeout_s)
        services.prompts.close()
        for task in background:
            task.cancel()
        for task in background:
            with suppress(asyncio.CancelledError):
                await task


async def _answer_route_error(_request: Request, error: Exception) -> Response:
    reply = describe(error)
    response = Response(reply.body, reply.status)
    response.raw_headers.extend(reply.headers)
    return response
