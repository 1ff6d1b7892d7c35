"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from loraplex.platform.api.answers import Answer
from loraplex.platform.api.bodies import parse, request_body_of
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.api.formats import ChatFormat
from loraplex.platform.completions import CompletionRequest
from loraplex.platform.deps import call_of, services_of
from loraplex.platform.permissions import walk_checks

router = APIRouter()


def request_of(body: bytes) -> CompletionRequest:
    """What a body asks for. Raises InvalidRequest."""
    return parse(body, ChatBody).to_request()


@router.post(
    "/v1/chat/completions",
    openapi_extra=request_body_of(ChatBody),
    dependencies=[walk_checks("inference")],
)
async def create_chat_completion(request: Request) -> Response:
    """Continue a conversation."""
    return Answer(call_of(request, request_of), ChatFormat, services_of(request))
