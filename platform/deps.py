"""What routes take from a request: the platform's parts, the caller's key, a checked body."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from loraplex.platform.completions import Call, CompletionRequest, authenticate
from loraplex.platform.errors import ClientGone
from loraplex.platform.log import AccessLine
from loraplex.platform.services import Services
from loraplex.tenants.api_keys import Principal


def services_of(request: Request) -> Services:
    """The parts that this app was created with."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def bearer_key(request: Request) -> str | None:
    """The key of an `Authorization: Bearer KEY` header."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


async def principal_of(request: Request) -> Principal:
    """Whom the caller's key stands for. Raises KeyMissing, KeyRefused and its subclasses."""
    return await authenticate(bearer_key(request), services_of(request))


def call_of(request: Request, check: Callable[[bytes], CompletionRequest]) -> Call:
    """The call that a request makes; its body is read when the caller is known."""

    async def read() -> CompletionRequest:
        try:
            return check(await request.body())
        except ClientDisconnect:
            raise ClientGone from None

    return Call(AccessLine.of(request.scope).request_id, bearer_key(request), read)


ServicesOf = Annotated[Services, Depends(services_of)]
Caller = Annotated[Principal, Depends(principal_of)]
