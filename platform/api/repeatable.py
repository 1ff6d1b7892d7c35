"""Writes of both APIs: those with an `Idempotency-Key` may be sent again."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.deps import body_of
from loraplex.platform.services import Services
from loraplex.tenants import idempotency
from loraplex.tenants.admin_keys import AdminPrincipal
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.idempotency import Answered, Attempt, Claim
from loraplex.tenants.ids import Entropy

Work = Callable[[AsyncSession, Entropy], Awaitable[BaseModel]]
"""Has its effect in the given transaction, and returns what is answered."""
Secrets = Callable[[Entropy], dict[str, str]]
"""The answer's secret fields, from the randomness that they were made with."""


@dataclass(frozen=True, slots=True)
class Post:
    """A POST or another write, and whose key sends it."""

    request: Request
    sender: Principal | AdminPrincipal
    services: Services
    status: int = 201

    async def serve(self, work: Work, secrets: Secrets | None = None) -> Response:
        """Do the work once and answer.

        Raises IdempotencyKeyReused, IdempotencyInProgress, and what the work does; work that
        failed has had no effect, and its key can be used again.
        """
        key = self.request.headers.get("idempotency-key")
        resources = self.services.resources
        if key is None:
            async with resources.database.session() as session:
                view = await work(session, resources.entropy)
            return _response(self.status, view.model_dump(mode="json"))
        attempt = Attempt(self.sender.key_id, key, await _fingerprint(self.request))
        async with resources.database.session() as session:
            claim = await idempotency.claim(
                session, attempt, self.services.now(), resources.entropy
            )
        if isinstance(claim, Answered):
            again = {} if secrets is None else secrets(claim.entropy(resources.pepper))
            body = json.loads(claim.answer) | again
            return _response(claim.status, body, {"idempotent-replayed": "true"})
        return await self._serve_claimed(claim, work, secrets)

    async def _serve_claimed(self, claim: Claim, work: Work, secrets: Secrets | None) -> Response:
        resources = self.services.resources
        pepper = resources.pepper
        secret_fields = set(secrets(claim.entropy(pepper))) if secrets is not None else set()
        try:
            async with resources.database.session() as session:
                view = await work(session, claim.entropy(pepper))
                stored = view.model_dump_json(exclude=secret_fields).encode()
                await idempotency.answer(session, claim, self.status, stored)
        except Exception:
            async with resources.database.session() as session:
                await idempotency.release(session, claim)
            raise
        return _response(self.status, view.model_dump(mode="json"))


async def _fingerprint(request: Request) -> str:
    query = request.url.query.encode()
    return idempotency.fingerprint(
        request.method.encode(), request.url.path.encode(), query, await body_of(request)
    )


def _response(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(body, ensure_ascii=False)
    return Response(text, status, headers, "application/json")
