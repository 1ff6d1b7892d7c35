"""`POST /v1/completions`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from loraplex.platform.api.answers import Answer
from loraplex.platform.api.bodies import parse, request_body_of
from loraplex.platform.api.completion_schema import CompletionBody
from loraplex.platform.api.formats import TextFormat
from loraplex.platform.completions import CompletionRequest
from loraplex.platform.deps import call_of, services_of
from loraplex.platform.permissions import walk_checks

router = APIRouter()


def _check(body: bytes) -> CompletionRequest:
    return parse(body, CompletionBody).to_request()


@router.post(
    "/v1/completions",
    openapi_extra=request_body_of(CompletionBody),
    dependencies=[walk_checks("inference")],
)
async def create_completion(request: Request) -> Response:
    """Continue a text."""
    return Answer(call_of(request, _check), TextFormat, services_of(request))
