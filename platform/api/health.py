"""Probes and metrics, for the operator; none asks for a key."""

from fastapi import APIRouter, Response

from loraplex.engine.errors import EngineUnavailable
from loraplex.platform.deps import ServicesOf

router = APIRouter()


@router.get("/livez")
async def livez() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/health")
@router.get("/readyz")
async def readyz(services: ServicesOf, response: Response) -> dict[str, str]:
    """A worker is connected. A database that is away makes requests fail, not this process unready:
    every other process would be unready with it. Load generators ask for it as `/health`."""
    connected = services.resources.engine.connected
    response.status_code = 200 if connected else 503
    return {"status": "ok" if connected else "no worker is connected"}


@router.get("/startupz")
async def startupz(services: ServicesOf, response: Response) -> dict[str, str]:
    """A worker has introduced its model since this process started."""
    try:
        model = services.resources.engine.model
    except EngineUnavailable as error:
        response.status_code = 503
        return {"status": str(error)}
    return {"status": "ok", "model": model.name}


@router.get("/metrics")
async def metrics(services: ServicesOf) -> Response:
    """The gateway's metrics and, if it answers, the worker's."""
    worker = await services.resources.engine.metrics()
    text = services.metrics.text() + worker.encode()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
