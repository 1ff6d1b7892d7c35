from collections.abc import AsyncIterator

import pytest
from tests.contracts.quota_stores import Clock, OpenQuotas, memory_quotas, quotas_in

from loraplex.tenants.quotas import Quotas


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
def open_quotas(request: pytest.FixtureRequest) -> OpenQuotas:
    """Each implementation of the port."""
    if request.param == "memory":
        return memory_quotas
    return quotas_in(request.getfixturevalue("valkey"))


@pytest.fixture
async def quotas(open_quotas: OpenQuotas, clock: Clock) -> AsyncIterator[Quotas]:
    async with open_quotas(clock) as quotas:
        yield quotas
