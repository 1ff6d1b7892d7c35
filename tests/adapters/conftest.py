"""A registry of its own for each test, on each kind of database."""

from collections.abc import AsyncIterator

import pytest
from tests.adapters.shop import Shop, open_shop


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(database_url) as shop:
        yield shop
