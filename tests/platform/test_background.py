"""What runs beside the requests: it may die, but neither silently nor with the others."""

import asyncio

import pytest
from tests.platform.conftest import make_tenant

from loraplex.platform import app as app_module
from loraplex.platform.app import create_app
from loraplex.platform.open_requests import OpenRequests
from loraplex.platform.services import Resources
from loraplex.tenants import api_keys


async def test_what_dies_is_logged_when_it_does_and_the_others_end_as_they_should(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(_: OpenRequests) -> None:
        raise RuntimeError("renewing is broken")

    logged: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    def note(message: str, *values: object, exc_info: object) -> None:
        logged.put_nowait((message % values, exc_info))

    monkeypatch.setattr(app_module._log, "error", note)
    monkeypatch.setattr(OpenRequests, "keep_renewing", die)
    tenant, key = await make_tenant(resources, "acme")
    app = create_app(resources)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(60):
            message, error = await logged.get()
        assert message == "renew-holds died and is not started again"
        assert str(error) == "renewing is broken"
        app.state.services.last_used.note(key.split("_")[1], resources.now())
    async with resources.database.reader() as session:
        (record,) = await api_keys.list_keys(session, tenant.id)
    assert record.last_used_at == resources.now()
