"""How many uploads may be open, and how they end by themselves; on either database."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest
from tests.platform.conftest import NOW, Gateway
from tests.platform.test_resumable import NAMES, begin, begun, leftovers, patch, state

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.adapters.registry import uploads
from loraplex.platform import resumable
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


async def test_a_gateway_that_starts_leaves_what_is_open_and_ends_the_record_of_what_it_removes(
    gateway: Gateway,
) -> None:
    sizes = {CONFIG_FILE: 10, TENSORS_FILE: 10}
    old, new = await begun(gateway, sizes), await begun(gateway, sizes)
    settings = gateway.resources.settings
    for path in (settings.data_dir / "uploads").rglob("*"):
        os.utime(path, (0, 0))  # whose clock says what is not known
    later = NOW + timedelta(seconds=settings.upload_expiry_s + 1)
    async with gateway.resources.database.session() as session:
        await uploads.touch(session, new, later)
    object.__setattr__(gateway.resources, "clock", later.timestamp)
    await resumable.tidy(gateway.resources)
    assert [(await state(gateway, upload))["status"] for upload in (old, new)] == [
        "cancelled",
        "uploading",
    ]
    assert [path.name for path in leftovers(gateway)] == [new]


async def test_an_upload_whose_check_died_counts_for_nobody(gateway: Gateway) -> None:
    sizes = {CONFIG_FILE: 10, TENSORS_FILE: 10}
    for _ in range(3):
        upload = await begun(gateway, sizes)
        async with gateway.resources.database.session() as session:
            assert await uploads.claim(session, gateway.tenant.id, upload, NOW, NOW)
    await begun(gateway, sizes)


async def test_uploads_that_come_at_a_time_are_bounded(gateway: Gateway) -> None:
    sizes = {NAMES[0]: 10, NAMES[1]: 10}
    upload = await begun(gateway, sizes)
    with (
        gateway.resources.upload_slots.taken(gateway.tenant.id),
        gateway.resources.upload_slots.taken(gateway.tenant.id),
        gateway.resources.upload_slots.taken(gateway.tenant.id),
    ):
        answer = await patch(gateway, upload, NAMES[0], 0, b"x")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        _, key = await gateway.make_tenant("other")
        other = await gateway.client.post(
            "/v1/adapters/uploads",
            json={"name": "a", "files": sizes},
            headers={"authorization": f"Bearer {key}"},
        )
        assert other.status_code == 201
    assert (await patch(gateway, upload, NAMES[0], 0, b"x")).status_code == 204
