"""Uploads that are announced at the same time, on either database."""

import asyncio
from pathlib import Path

import pytest
from tests.platform.conftest import Gateway
from tests.platform.test_resumable import begin

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.platform.settings import Settings


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(data_dir=tmp_path, database_url=gateway_database_url, max_tenant_uploads=3)


async def test_limits_of_a_tenants_uploads_hold_for_those_that_begin_at_a_time(
    gateway: Gateway,
) -> None:
    sizes = {CONFIG_FILE: 10, TENSORS_FILE: 10}
    answers = await asyncio.gather(*(begin(gateway, sizes) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 7
