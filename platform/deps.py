"""What routes take from a request: the platform's parts, the caller's key, a checked body."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from loraplex.platform.completions import Call, CompletionRequest, Deadline, authenticate
from loraplex.platform.errors import AdminKeyNeeded, ClientGone, InvalidRequest, KeyMissing
from loraplex.platform.log import AccessLine
from loraplex.platform.services import Services
from loraplex.tenants import admin_keys, api_keys
from loraplex.tenants.admin_keys import AdminPrincipal
from loraplex.tenants.api_keys import Principal

PROGRAM_HEADER = "x-loraplex-program"
MAX_PROGRAM_CHARS = 128
DEADLINE_HEADER = "x-loraplex-ttft-deadline-ms"
MAX_DEADLINE_MS = 3_600_000
STICKY_HEADER = "x-loraplex-sticky"
MAX_STICKY_CHARS = 256
MAX_INLINE_BYTES = 65_536
"""Larger bodies are read and checked in a thread, so that the event loop runs on."""


def services_of(request: Request) -> Services:
    """The parts that this app was created with."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def bearer_key(request: Request) -> str | None:
    """The key of an `Authorization: Bearer KEY` header."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def address_of(request: Request) -> str | None:
    """The address that a request comes from; None where the server knows none."""
    return request.client.host if request.client else None


async def principal_of(request: Request) -> Principal:
    """Whom the caller's key stands for. Raises KeyMissing, KeyRefused and its subclasses."""
    return await authenticate(bearer_key(request), address_of(request), services_of(request))


async def body_of(request: Request) -> bytes:
    """The whole body. Raises ClientGone where it stops to come."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientGone from None


async def chunks_of(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes. Raises ClientGone where it stops to come."""
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise ClientGone from None


async def admin_of(request: Request) -> AdminPrincipal:
    """The operator that the key stands for. Raises KeyMissing, AdminKeyNeeded, KeyRefused."""
    services = services_of(request)
    key = bearer_key(request)
    if key is None:
        raise KeyMissing
    if key.startswith(f"{api_keys.PREFIX}_"):
        raise AdminKeyNeeded
    now = services.now()
    async with services.resources.database.reader() as session:
        admin = await admin_keys.verify(session, key, services.resources.pepper, now)
    services.admin_last_used.note(admin.key_id, now)
    return admin


def program_of(request: Request) -> str:
    """The program that a request names as a part of which it is made. Raises InvalidRequest."""
    program = request.headers.get(PROGRAM_HEADER, "")
    if len(program) > MAX_PROGRAM_CHARS or not program.isascii() or not program.isprintable():
        raise InvalidRequest(
            f"{PROGRAM_HEADER} must be at most {MAX_PROGRAM_CHARS} printable ASCII characters.",
            PROGRAM_HEADER,
        )
    return program


def deadline_of(request: Request) -> Deadline | None:
    """When the first token must come, if the request says so. Raises InvalidRequest."""
    texts = request.headers.getlist(DEADLINE_HEADER)
    if not texts:
        return None
    text = ", ".join(texts)  # as HTTP reads a header that is there twice
    if text == "none":
        return Deadline(None)
    is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_DEADLINE_MS))
    if not (is_short and 1 <= int(text) <= MAX_DEADLINE_MS):
        raise InvalidRequest(
            f"{DEADLINE_HEADER} must be a whole number of milliseconds from 1 to "
            f"{MAX_DEADLINE_MS}, or none, not {text[:40]!r}.",
            DEADLINE_HEADER,
        )
    return Deadline(float(text))


def sticky_of(request: Request) -> str | None:
    """The text by which an alias chooses a version, if the request has one. Raises
    InvalidRequest."""
    texts = request.headers.getlist(STICKY_HEADER)
    if not texts:
        return None
    text = ", ".join(texts)  # as HTTP reads a header that is there twice
    if len(text) > MAX_STICKY_CHARS:
        raise InvalidRequest(
            f"{STICKY_HEADER} must be at most {MAX_STICKY_CHARS} characters.", STICKY_HEADER
        )
    return text


def call_of(request: Request, check: Callable[[bytes], CompletionRequest]) -> Call:
    """The call that a request makes; its body is read when the caller is known."""

    async def read() -> CompletionRequest:
        program, deadline, sticky = program_of(request), deadline_of(request), sticky_of(request)
        body = await body_of(request)
        is_large = len(body) > MAX_INLINE_BYTES
        asked = await asyncio.to_thread(check, body) if is_large else check(body)
        return replace(asked, program=program, ttft_deadline=deadline, sticky=sticky)

    request_id = AccessLine.of(request.scope).request_id
    return Call(request_id, bearer_key(request), read, address_of(request))


ServicesOf = Annotated[Services, Depends(services_of)]
Caller = Annotated[Principal, Depends(principal_of)]
Admin = Annotated[AdminPrincipal, Depends(admin_of)]
