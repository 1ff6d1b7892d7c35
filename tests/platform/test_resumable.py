"""Uploads in pieces: nothing that came is lost, whatever breaks in between, and nothing is said
twice that is not so."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.adapters import build
from tests.platform.conftest import NOW, Gateway, error_of

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.adapters.registry import uploads
from loraplex.platform import resumable
from loraplex.platform.app import create_app
from loraplex.platform.settings import Settings
from loraplex.tenants import audit

NAMES = (CONFIG_FILE, TENSORS_FILE)


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=gateway_database_url,
        max_body_bytes=2000,
        max_upload_bytes=1_000_000,
        max_tenant_uploads=3,
        max_tenant_upload_bytes=1_500_000,
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict[str, bytes]:
    folder = build.save(tmp_path / "mine")
    return {name: (folder / name).read_bytes() for name in NAMES}


async def begin(gateway: Gateway, files: dict[str, Any], name: str = "support") -> httpx.Response:
    sizes = {n: len(f) if isinstance(f, bytes) else f for n, f in files.items()}
    return await gateway.client.post("/v1/adapters/uploads", json={"name": name, "files": sizes})


async def begun(gateway: Gateway, files: dict[str, Any], name: str = "support") -> str:
    response = await begin(gateway, files, name)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def patch(
    gateway: Gateway, upload: str, name: str, offset: int | str, data: Any
) -> httpx.Response:
    headers = {"upload-offset": str(offset), "content-type": "application/offset+octet-stream"}
    url = f"/v1/adapters/uploads/{upload}/{name}"
    return await gateway.client.patch(url, content=data, headers=headers)


async def send(gateway: Gateway, upload: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        assert (await patch(gateway, upload, name, 0, data)).status_code == 204


async def complete(gateway: Gateway, upload: str) -> httpx.Response:
    return await gateway.client.post(f"/v1/adapters/uploads/{upload}/complete")


async def state(gateway: Gateway, upload: str) -> dict[str, Any]:
    found = await gateway.client.get(f"/v1/adapters/uploads/{upload}")
    assert found.status_code == 200
    return dict(found.json())


def leftovers(gateway: Gateway) -> list[Path]:
    return list((gateway.resources.settings.data_dir / "uploads").glob("*"))


async def test_an_upload_in_pieces_is_published_and_tells_its_progress(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    data = checkpoint[TENSORS_FILE]
    await patch(gateway, upload, CONFIG_FILE, 0, checkpoint[CONFIG_FILE])
    answer = await patch(gateway, upload, TENSORS_FILE, 0, data[:100])
    assert (answer.status_code, answer.headers["upload-offset"]) == (204, "100")
    shown = await state(gateway, upload)
    assert (shown["status"], shown["received_bytes"], shown["total_bytes"]) == (
        "uploading",
        len(checkpoint[CONFIG_FILE]) + 100,
        sum(map(len, checkpoint.values())),
    )
    assert shown["files"][TENSORS_FILE] == {"received": 100, "total": len(data), "sha256": None}
    head = await gateway.client.head(f"/v1/adapters/uploads/{upload}/{TENSORS_FILE}")
    assert (head.headers["upload-offset"], head.headers["upload-length"]) == (
        "100",
        str(len(data)),
    )
    await patch(gateway, upload, TENSORS_FILE, 100, data[100:])
    done = await complete(gateway, upload)
    assert (done.status_code, done.json()["status"], done.json()["version"]) == (
        200,
        "ready",
        "acme/support@1",
    )
    assert (await complete(gateway, upload)).json() == done.json()
    assert (await gateway.chat(model="acme/support")).status_code == 200
    assert leftovers(gateway) == []


async def test_a_piece_at_another_offset_is_told_the_right_one(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    await patch(gateway, upload, TENSORS_FILE, 0, b"x" * 10)
    for offset in (0, 9, 11):
        answer = await patch(gateway, upload, TENSORS_FILE, offset, b"y")
        assert (answer.status_code, answer.headers["upload-offset"]) == (409, "10")
        assert error_of(answer)["code"] == "upload_offset_mismatch"
    for offset in ("", "-1", "1e3", "١"):
        assert (await patch(gateway, upload, TENSORS_FILE, offset.encode(), b"y")).status_code in (
            400,
        )


async def test_more_than_was_announced_is_refused_and_what_fitted_stays(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    size = len(checkpoint[CONFIG_FILE])
    await patch(gateway, upload, CONFIG_FILE, 0, b"x" * 2)
    answer = await patch(gateway, upload, CONFIG_FILE, 2, b"x" * (size + 1))
    assert answer.status_code == 413
    assert error_of(answer)["message"] == (
        f"{CONFIG_FILE} was announced with {size} bytes and has 2; {size - 2} may follow."
    )
    assert (await state(gateway, upload))["received_bytes"] <= size


async def test_an_upload_that_is_not_whole_cannot_be_completed(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    await patch(gateway, upload, CONFIG_FILE, 0, checkpoint[CONFIG_FILE])
    answer = await complete(gateway, upload)
    assert (answer.status_code, error_of(answer)["code"]) == (409, "upload_offset_mismatch")
    assert answer.headers["upload-offset"] == "0"
    assert (await state(gateway, upload))["status"] == "uploading"


async def test_a_rejected_upload_is_listed_with_its_problems(
    gateway: Gateway, tmp_path: Path
) -> None:
    folder = build.save(tmp_path / "bad", {"use_qalora": True, "zzz": 1})
    files = {name: (folder / name).read_bytes() for name in NAMES}
    upload = await begun(gateway, files)
    await send(gateway, upload, files)
    first, second = await complete(gateway, upload), await complete(gateway, upload)
    assert first.status_code == second.status_code == 400
    assert first.json()["error"]["problems"] == second.json()["error"]["problems"]
    (shown,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert (shown["id"], shown["status"], shown["version"]) == (upload, "rejected", None)
    assert {"field", "value", "reason"} == set(shown["problems"][0])
    assert any("zzz" in problem["field"] for problem in shown["problems"])
    assert leftovers(gateway) == []


async def test_an_upload_whose_rejection_cannot_be_noted_may_be_completed_again(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build.save(tmp_path / "bad", {"use_qalora": True})
    files = {name: (folder / name).read_bytes() for name in NAMES}
    upload = await begun(gateway, files)
    await send(gateway, upload, files)
    with monkeypatch.context() as patched:
        patched.setattr(audit, "append", AsyncMock(side_effect=ValueError))
        assert (await complete(gateway, upload)).status_code == 500
    assert (await state(gateway, upload))["status"] == "uploading"
    assert (await complete(gateway, upload)).status_code == 400
    assert (await state(gateway, upload))["status"] == "rejected"


async def test_a_cancelled_upload_is_over(gateway: Gateway, checkpoint: dict[str, bytes]) -> None:
    upload = await begun(gateway, checkpoint)
    await send(gateway, upload, checkpoint)
    url = f"/v1/adapters/uploads/{upload}"
    assert (await gateway.client.delete(url)).status_code == 204
    assert (await gateway.client.delete(url)).status_code == 204
    assert leftovers(gateway) == []
    assert (await state(gateway, upload))["status"] == "cancelled"
    for answer in (await complete(gateway, upload), await patch(gateway, upload, NAMES[0], 0, b"")):
        assert (answer.status_code, error_of(answer)["code"]) == (409, "upload_conflict")
    other = await begun(gateway, checkpoint)
    await send(gateway, other, checkpoint)
    await complete(gateway, other)
    answer = await gateway.client.delete(f"/v1/adapters/uploads/{other}")
    assert error_of(answer)["code"] == "upload_conflict"


@pytest.mark.parametrize(
    ("files", "status", "param"),
    [
        ({CONFIG_FILE: 10}, 400, TENSORS_FILE),
        ({CONFIG_FILE: 10, TENSORS_FILE: 10, "../x": 1}, 400, "files"),
        ({CONFIG_FILE: 10, TENSORS_FILE: 10, "README.md": 1}, 400, "files"),
        ({CONFIG_FILE: 10, TENSORS_FILE: 0}, 400, f"files.{TENSORS_FILE}"),
        ({CONFIG_FILE: 10, TENSORS_FILE: {"bytes": 0}}, 400, f"files.{TENSORS_FILE}"),
        (
            {CONFIG_FILE: 10, TENSORS_FILE: {"bytes": 9, "sha256": "AB"}},
            400,
            f"files.{TENSORS_FILE}.sha256",
        ),
        ({CONFIG_FILE: 10, TENSORS_FILE: "10"}, 400, f"files.{TENSORS_FILE}.bytes"),
        ({CONFIG_FILE: 10, TENSORS_FILE: 1_000_000}, 413, None),
    ],
)
async def test_what_cannot_be_an_adapter_is_refused_before_a_byte_comes(
    gateway: Gateway, files: dict[str, int], status: int, param: str | None
) -> None:
    answer = await begin(gateway, files)
    assert (answer.status_code, error_of(answer)["param"]) == (status, param)
    assert leftovers(gateway) == []


async def test_another_tenants_upload_is_told_as_an_absent_one(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    _, key = await gateway.make_tenant("other")
    headers = {"authorization": f"Bearer {key}", "upload-offset": "0"}
    for method, path in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/complete"),
        ("PATCH", f"/{CONFIG_FILE}"),
        ("HEAD", f"/{CONFIG_FILE}"),
    ]:
        url = f"/v1/adapters/uploads/{upload}{path}"
        foreign = await gateway.client.request(method, url, headers=headers)
        absent = await gateway.client.request(method, url.replace(upload, "upl_0"), headers=headers)
        assert foreign.status_code == absent.status_code == 404
        assert foreign.text.replace(upload, "upl_0") == absent.text
    assert (await state(gateway, upload))["received_bytes"] == 0


async def test_open_uploads_of_a_tenant_are_bounded_in_number_and_bytes(gateway: Gateway) -> None:
    small, large = {NAMES[0]: 10, NAMES[1]: 10}, {NAMES[0]: 10, NAMES[1]: 900_000}
    await begun(gateway, large)
    answer = await begin(gateway, large)
    assert (answer.status_code, error_of(answer)["code"]) == (429, "too_many_uploads")
    second, _ = await begun(gateway, small), await begun(gateway, small)
    assert (await begin(gateway, small)).status_code == 429
    await gateway.client.delete(f"/v1/adapters/uploads/{second}")
    await begun(gateway, small)


async def test_uploads_that_nothing_comes_for_expire(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    later = NOW + timedelta(seconds=gateway.resources.settings.upload_expiry_s + 1)
    object.__setattr__(gateway.resources, "clock", later.timestamp)
    await resumable.expire(gateway.resources)
    assert (await state(gateway, upload))["status"] == "cancelled"
    assert leftovers(gateway) == []


async def test_two_who_complete_at_once_publish_once(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    await send(gateway, upload, checkpoint)
    answers = await asyncio.gather(*(complete(gateway, upload) for _ in range(4)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert 200 in {answer.status_code for answer in answers}
    assert (await complete(gateway, upload)).json()["version"] == "acme/support@1"
    versions = (await gateway.client.get("/v1/adapters/support/versions")).json()["data"]
    assert [version["version"] for version in versions] == [1]


async def test_a_check_that_died_with_its_gateway_may_be_made_again(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    await send(gateway, upload, checkpoint)
    async with gateway.resources.database.session() as session:
        assert await uploads.claim(session, gateway.tenant.id, upload, NOW, NOW)
    assert (await complete(gateway, upload)).status_code == 409
    later = NOW + timedelta(seconds=resumable.CHECK_S + 1)
    object.__setattr__(gateway.resources, "clock", later.timestamp)
    assert (await complete(gateway, upload)).json()["status"] == "ready"


async def test_an_upload_that_cannot_be_checked_now_can_be_completed_later(
    gateway: Gateway, checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await begun(gateway, checkpoint)
    await send(gateway, upload, checkpoint)
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise OSError(28, "no space left")

        patched.setattr(gateway.resources.store, "put", full)
        assert (await complete(gateway, upload)).status_code == 503
    assert (await state(gateway, upload))["status"] == "uploading"
    assert (await complete(gateway, upload)).json()["status"] == "ready"


async def test_an_upload_goes_on_at_another_gateway_of_the_data_directory(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    """As it does at the same one, started again: what it knows is in the database and on disk."""
    upload = await begun(gateway, checkpoint)
    await patch(gateway, upload, TENSORS_FILE, 0, checkpoint[TENSORS_FILE][:100])
    resources = replace(gateway.resources, registry=CollectorRegistry())
    app = create_app(resources)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://other", headers=gateway.headers
        ) as client,
    ):
        other = replace(gateway, app=app, resources=resources, client=client)
        await patch(other, upload, TENSORS_FILE, 100, checkpoint[TENSORS_FILE][100:])
        await patch(gateway, upload, CONFIG_FILE, 0, checkpoint[CONFIG_FILE])
        answers = await asyncio.gather(complete(gateway, upload), complete(other, upload))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert (await state(gateway, upload))["version"] == "acme/support@1"


async def test_two_who_write_one_file_do_not_mix(
    gateway: Gateway, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, checkpoint)
    data = checkpoint[TENSORS_FILE]
    first_came, second_answered = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield data[:10]
        first_came.set()
        await second_answered.wait()
        yield data[10:]

    running = asyncio.create_task(patch(gateway, upload, TENSORS_FILE, 0, slow()))
    await first_came.wait()
    answer = await patch(gateway, upload, TENSORS_FILE, 0, b"evil")
    assert (await gateway.chat()).status_code == 200  # a slow upload hurts nobody
    second_answered.set()
    assert answer.status_code == 409
    assert (await running).headers["upload-offset"] == str(len(data))
    await patch(gateway, upload, CONFIG_FILE, 0, checkpoint[CONFIG_FILE])
    assert (await complete(gateway, upload)).json()["status"] == "ready"


async def test_what_came_before_a_connection_broke_stays(
    gateway: Gateway, server: str, checkpoint: dict[str, bytes]
) -> None:
    upload = await begun(gateway, {CONFIG_FILE: 10, TENSORS_FILE: 500_000})

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 300_000
        async with httpx.AsyncClient() as other:
            while not (await state(gateway, upload))["received_bytes"]:
                await other.get(f"{server}/livez")
        raise ConnectionAbortedError

    headers = gateway.headers | {"upload-offset": "0"}
    url = f"{server}/v1/adapters/uploads/{upload}/{TENSORS_FILE}"
    async with httpx.AsyncClient(headers=headers) as client:
        with pytest.raises(ConnectionAbortedError):
            await client.patch(url, content=body())
        received = (await state(gateway, upload))["received_bytes"]
        assert 0 < received <= 300_000
        rest = b"y" * (500_000 - received)
        while True:  # until the gateway has noticed that the first connection is gone
            answer = await client.patch(url, content=rest, headers={"upload-offset": str(received)})
            if error := answer.json().get("error") if answer.content else None:
                assert answer.status_code == 409
                shown = (await state(gateway, upload))["received_bytes"]
                received, rest = shown, b"y" * (500_000 - shown)
                assert error["code"] in {"upload_conflict", "upload_offset_mismatch"}
                continue
            break
    assert answer.headers["upload-offset"] == "500000"
