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
    """A worker is connected. What else is away is told, and makes requests fail or be counted here
    alone, not this process unready: every other process would be unready with it. Load generators
    ask for it as `/health`."""
    engine = services.resources.engine
    response.status_code = 200 if engine.connected else 503
    told = {"status": "ok" if engine.connected else "no worker is connected"}
    if engine.journal_failure:
        told["journal"] = f"no request is taken: {engine.journal_failure}"
    if services.resources.quotas.is_degraded:
        told["quotas"] = "the store that gateways share is away: each counts by itself"
    if services.standing_watch.is_database_away or services.open_requests.is_ledger_failing:
        told["database"] = "no request is taken: it does not answer"
    return told


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
