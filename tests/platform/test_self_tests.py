"""An uploaded adapter is published only if the worker serves it as it should be served."""

import json
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from tests.adapters import build
from tests.platform.conftest import NOW, Gateway
from tests.platform.scripted_engine import PASSED
from tests.platform.test_uploads import files_of

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.errors import AdapterMissing
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.errors import AdapterOverCap
from loraplex.platform.settings import Settings
from loraplex.tenants import directory
from loraplex.tenants.audit import CLI, Act

DIFFERS = structs.replace(
    PASSED,
    passed=False,
    detail="token 3 after test prompt 1 is 4 as served and 5 by the reference",
    max_abs_logprob_diff=0.25,
)


@pytest.fixture
def self_test() -> str:
    """The setting; tests of others put theirs in its place."""
    return "auto"


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str, self_test: str) -> Settings:
    return Settings(data_dir=tmp_path, database_url=gateway_database_url, self_test=self_test)


async def upload(
    gateway: Gateway, tmp_path: Path, headers: dict[str, str] | None = None
) -> httpx.Response:
    folder = build.save(tmp_path / "mine")
    return await gateway.client.post(
        "/v1/adapters", data={"name": "support"}, files=files_of(folder), headers=headers
    )


def is_stored(gateway: Gateway, digest: str) -> bool:
    try:
        AdapterStore(gateway.resources.settings.adapters_dir).open(digest)
    except AdapterMissing:
        return False
    return True


async def listed(gateway: Gateway) -> list[dict]:
    return (await gateway.client.get("/v1/adapters")).json()["data"]


async def test_what_the_test_found_is_shown_with_the_version(
    gateway: Gateway, tmp_path: Path
) -> None:
    shown = (await upload(gateway, tmp_path)).json()["self_test"]
    assert shown == {
        "method": "reference",
        "passed": True,
        "max_abs_logprob_diff": 0.00001,
        "num_tokens": 24,
        "num_compared": 23,
        "changes_output": True,
        "detail": "",
    }
    (version,) = await listed(gateway)
    assert version["self_test"] == shown


async def test_the_test_is_the_work_of_the_adapters_tenant(
    gateway: Gateway, tmp_path: Path
) -> None:
    tenant = gateway.tenant
    async with gateway.resources.database.session() as session:
        await directory.change(
            session, Act(CLI, NOW), tenant.id, directory.TenantChange(weight=2.5)
        )
    await upload(gateway, tmp_path)
    (asked,) = gateway.engine.verified
    digest = inspect(tmp_path / "mine", build.base()).digest
    assert (asked.tenant, asked.adapter, asked.weight) == (tenant.id, digest, 2.5)
    assert asked.may_use_peft


async def test_an_adapter_that_is_served_wrong_is_refused_with_the_numbers(
    gateway: Gateway, tmp_path: Path
) -> None:
    gateway.engine.self_test = DIFFERS
    response = await upload(gateway, tmp_path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_adapter")
    (problem,) = error["problems"]
    assert problem.startswith("self_test: ")
    for part in ("0.25", "0.001", "token 3 after test prompt 1"):
        assert part in problem
    assert await listed(gateway) == []


async def test_the_bytes_of_what_is_refused_are_kept_nowhere(
    gateway: Gateway, tmp_path: Path
) -> None:
    gateway.engine.self_test = DIFFERS
    await upload(gateway, tmp_path)
    digest = inspect(tmp_path / "mine", build.base()).digest
    assert not is_stored(gateway, digest)
    assert gateway.engine.dropped == [(gateway.tenant.id, digest)]


async def test_bytes_that_another_version_has_are_kept(gateway: Gateway, tmp_path: Path) -> None:
    await upload(gateway, tmp_path)
    _, key = await gateway.make_tenant("other")
    gateway.engine.self_test = DIFFERS
    refused = await upload(gateway, tmp_path, headers={"authorization": f"Bearer {key}"})
    assert refused.status_code == 400
    assert is_stored(gateway, inspect(tmp_path / "mine", build.base()).digest)


async def test_an_adapter_that_no_worker_can_test_is_not_published(
    gateway: Gateway, tmp_path: Path
) -> None:
    gateway.engine.self_test = "the worker is too busy; try again later"
    response = await upload(gateway, tmp_path)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "the worker is too busy; try again later"
    assert await listed(gateway) == []
    assert not is_stored(gateway, inspect(tmp_path / "mine", build.base()).digest)
    gateway.engine.self_test = PASSED
    assert (await upload(gateway, tmp_path)).status_code == 201


async def test_an_adapter_over_the_tenants_cap_is_told_the_limit_and_is_no_mismatch(
    gateway: Gateway, tmp_path: Path
) -> None:
    told = "the adapter needs 9 bytes, and its tenant may hold 8 (adapter_cap_bytes)"
    gateway.engine.self_test = AdapterOverCap(told, "model")
    response = await upload(gateway, tmp_path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "adapter_too_large")
    assert error["message"] == f"T{told[1:]}."
    assert await listed(gateway) == []
    assert not is_stored(gateway, inspect(tmp_path / "mine", build.base()).digest)


@pytest.mark.parametrize("self_test", ["reference"])
async def test_peft_is_not_asked_for_where_the_operator_wants_none(
    gateway: Gateway, tmp_path: Path
) -> None:
    await upload(gateway, tmp_path)
    (asked,) = gateway.engine.verified
    assert not asked.may_use_peft


@pytest.mark.parametrize("self_test", ["off"])
async def test_without_tests_a_version_says_that_none_was_made(
    gateway: Gateway, tmp_path: Path
) -> None:
    assert (await upload(gateway, tmp_path)).json()["self_test"] is None
    assert gateway.engine.verified == []


async def test_bytes_that_were_published_untested_can_be_tested_later(
    gateway: Gateway, tmp_path: Path
) -> None:
    digest = inspect(build.save(tmp_path / "other"), build.base()).digest
    await gateway.publish("support", digest)
    assert [version["self_test"] for version in await listed(gateway)] == [None]
    again = await upload(gateway, tmp_path)
    assert json.loads(again.text)["id"] == "acme/support@1"
    (version,) = await listed(gateway)
    assert version["self_test"]["passed"]
