"""`/admin/v1/requests`: how requests stand that are open or ended lately."""

from fastapi import APIRouter

from loraplex.platform.api.views import WhyView
from loraplex.platform.deps import Admin, ServicesOf
from loraplex.platform.errors import RequestNotFound
from loraplex.platform.permissions import operator_may

router = APIRouter(prefix="/admin/v1/requests")


@router.get("/{request_id}/why", tags=["requests"], dependencies=[operator_may("platform.read")])
async def explain_request(request_id: str, _admin: Admin, services: ServicesOf) -> WhyView:
    """Show how long a request waited, and for what."""
    open_request = services.open_requests.find(request_id)
    if open_request is not None:
        explained = await services.resources.engine.why(request_id)
        return WhyView.of_open(open_request, explained)
    ended = services.open_requests.find_ended(request_id)
    if ended is None:
        raise RequestNotFound(request_id)
    return WhyView.of_ended(ended)
