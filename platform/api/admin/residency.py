"""`/admin/v1/residency`: which adapters are where in the worker's memory, and why."""

from fastapi import APIRouter

from loraplex.engine.errors import EngineUnavailable
from loraplex.platform.deps import Admin, ServicesOf
from loraplex.platform.permissions import operator_may
from loraplex.platform.residency_view import ResidencyView, residency_view

router = APIRouter(prefix="/admin/v1/residency")


@router.get("", tags=["adapters"], dependencies=[operator_may("platform.read")])
async def show_residency(_admin: Admin, services: ServicesOf) -> ResidencyView:
    """Show what is where in the worker's memory, and why."""
    report = await services.resources.engine.residency()
    if report is None:
        raise EngineUnavailable("the worker does not answer; retry in a moment")
    async with services.resources.database.reader() as session:
        return await residency_view(session, report)
