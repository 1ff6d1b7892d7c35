"""Adapters over REST: received as they come, refused with every reason, callable at once."""

import json
import resource
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from tests.adapters import build
from tests.platform.conftest import NOW, PEPPER, Gateway, error_of
from tests.platform.tiny_model import model_info

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE, inspect
from loraplex.adapters.storage import AdapterStore
from loraplex.platform.settings import Settings
from loraplex.tenants import admin_keys, directory
from loraplex.tenants.audit import CLI, Act

MIB = 1024 * 1024


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=gateway_database_url,
        max_body_bytes=2000,
        max_upload_bytes=MIB,
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return build.save(tmp_path / "mine")


def files_of(folder: Path) -> dict[str, Any]:
    return {name: (name, (folder / name).read_bytes()) for name in (CONFIG_FILE, TENSORS_FILE)}


async def upload(gateway: Gateway, folder: Path, name: str = "support") -> httpx.Response:
    return await gateway.client.post("/v1/adapters", data={"name": name}, files=files_of(folder))


def leftovers(gateway: Gateway) -> list[Path]:
    data_dir = gateway.resources.settings.data_dir
    return [*(data_dir / "uploads").glob("*"), *(data_dir / "adapters").glob(".*")]


async def test_an_uploaded_adapter_is_callable_at_once(gateway: Gateway, checkpoint: Path) -> None:
    response = await upload(gateway, checkpoint)
    digest = inspect(checkpoint, build.base()).digest
    assert response.status_code == 201
    assert response.json() == {
        "id": "acme/support@1",
        "object": "adapter.version",
        "model": "acme/support",
        "version": 1,
        "digest": digest,
        "rank": 2,
        "num_bytes": 112,
        "base_model": "tiny",
        "created_at": "2026-11-30T00:00:00Z",
        "status": "ready",
        "is_pinned": False,
        "deletion": None,
        "retired_at": None,
        "deleted_at": None,
        "self_test": response.json()["self_test"],
        "warnings": [],
    }
    answer = await gateway.chat(model="acme/support")
    assert answer.headers["x-loraplex-model"] == "acme/support@1"
    assert (await gateway.engine.submitted()).adapter == digest
    assert AdapterStore(gateway.resources.settings.data_dir / "adapters").open(digest).is_dir()
    assert leftovers(gateway) == []


async def test_the_same_bytes_again_are_the_same_version(
    gateway: Gateway, checkpoint: Path, tmp_path: Path
) -> None:
    first = await upload(gateway, checkpoint)
    assert (await upload(gateway, checkpoint)).json() == first.json()
    other = await upload(gateway, build.save(tmp_path / "other", {"lora_alpha": 7}))
    assert other.json()["id"] == "acme/support@2"


async def test_adapters_are_listed_with_their_versions(
    gateway: Gateway, checkpoint: Path, tmp_path: Path
) -> None:
    await upload(gateway, checkpoint)
    await upload(gateway, build.save(tmp_path / "other", {"lora_alpha": 7}))
    await upload(gateway, checkpoint, "sql")
    newest = (await gateway.client.get("/v1/adapters")).json()["data"]
    assert [item["id"] for item in newest] == ["acme/sql@1", "acme/support@2"]
    versions = (await gateway.client.get("/v1/adapters/support/versions")).json()["data"]
    assert [item["version"] for item in versions] == [2, 1]
    assert len({item["digest"] for item in versions}) == 2


async def test_another_tenants_adapter_is_told_as_an_absent_one(
    gateway: Gateway, checkpoint: Path
) -> None:
    await upload(gateway, checkpoint)
    _, key = await gateway.make_tenant("other")
    headers = {"authorization": f"Bearer {key}"}
    foreign = await gateway.client.get("/v1/adapters/support", headers=headers)
    absent = await gateway.client.get("/v1/adapters/nothing", headers=headers)
    assert foreign.status_code == absent.status_code == 404
    assert foreign.text.replace("support", "nothing") == absent.text
    assert (await gateway.client.get("/v1/adapters", headers=headers)).json()["data"] == []


async def test_an_adapter_is_refused_with_all_problems_at_once(
    gateway: Gateway, tmp_path: Path
) -> None:
    broken = build.save(
        tmp_path / "broken",
        {"use_qalora": True, "zzz": 1},
        build.tensors() | {"stray": np.zeros(1, np.float32)},
    )
    response = await upload(gateway, broken)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_adapter")
    assert len(error["problems"]) == 3
    for problem, word in zip(error["problems"], ("use_qalora", "zzz", "stray"), strict=True):
        assert word in problem
        assert problem in error["message"]
    assert error["details"][0] == {
        "field": "use_qalora",
        "value": "True",
        "reason": "QALoRA is not served",
    }
    assert (await gateway.client.get("/v1/adapters")).json()["data"] == []
    assert leftovers(gateway) == []


async def test_an_operator_uploads_for_a_tenant(gateway: Gateway, checkpoint: Path) -> None:
    async with gateway.resources.database.session() as session:
        key = await admin_keys.mint(session, "", PEPPER, NOW, secrets.token_bytes)
    headers = {"authorization": f"Bearer {key.text}"}
    url = "/admin/v1/tenants/acme/adapters"
    made = await gateway.client.post(
        url, data={"name": "x"}, files=files_of(checkpoint), headers=headers
    )
    assert (made.status_code, made.json()["id"]) == (201, "acme/x@1")
    listed = await gateway.client.get(url, headers=headers)
    assert [item["id"] for item in listed.json()["data"]] == ["acme/x@1"]
    refused = await gateway.client.post(
        url,
        data={"name": "x"},
        files=files_of(checkpoint) | {CONFIG_FILE: (CONFIG_FILE, b"{}")},
        headers=headers,
    )
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "invalid_adapter"
    assert refused.json()["problems"]


@pytest.mark.parametrize(
    ("name", "leave_out", "code", "param"),
    [
        ("Support", None, "invalid_value", "name"),
        (None, None, "missing_required_parameter", "name"),
        ("a", CONFIG_FILE, "missing_required_parameter", CONFIG_FILE),
        ("a", TENSORS_FILE, "missing_required_parameter", TENSORS_FILE),
    ],
)
async def test_an_incomplete_form_is_refused_by_field(
    gateway: Gateway,
    checkpoint: Path,
    name: str | None,
    leave_out: str | None,
    code: str,
    param: str | None,
) -> None:
    files = {k: v for k, v in files_of(checkpoint).items() if k != leave_out}
    data = {} if name is None else {"name": name}
    response = await gateway.client.post("/v1/adapters", data=data, files=files)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert leftovers(gateway) == []


async def test_a_part_that_is_not_asked_for_is_refused(gateway: Gateway, checkpoint: Path) -> None:
    files = files_of(checkpoint) | {"../../evil": ("x", b"x")}
    response = await gateway.client.post("/v1/adapters", data={"name": "a"}, files=files)
    assert error_of(response)["code"] == "unknown_parameter"
    twice = [*files_of(checkpoint).items(), (CONFIG_FILE, (CONFIG_FILE, b"{}"))]
    response = await gateway.client.post("/v1/adapters", data={"name": "a"}, files=twice)
    assert "twice" in error_of(response)["message"]
    assert leftovers(gateway) == []


async def test_what_is_no_form_is_refused(gateway: Gateway) -> None:
    types = [
        "application/json",
        "multipart/form-data",
        f"multipart/form-data; boundary={'b' * 257}",
    ]
    for headers in ({"content-type": content_type} for content_type in types):
        response = await gateway.client.post("/v1/adapters", content=b"{}", headers=headers)
        assert (response.status_code, error_of(response)["code"]) == (400, "invalid_form")


async def test_uploads_have_a_limit_of_their_own(gateway: Gateway, checkpoint: Path) -> None:
    large = {TENSORS_FILE: (TENSORS_FILE, b"x" * MIB)} | {CONFIG_FILE: ("c", b"{}")}
    response = await gateway.client.post("/v1/adapters", data={"name": "a"}, files=large)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
    assert (await gateway.chat(user="x" * 3000)).status_code == 413
    small = {TENSORS_FILE: (TENSORS_FILE, b"x" * 5000)} | {CONFIG_FILE: ("c", b"{}")}
    response = await gateway.client.post("/v1/adapters", data={"name": "a"}, files=small)
    assert error_of_upload(response) == "invalid_adapter"
    assert leftovers(gateway) == []


def error_of_upload(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


async def test_bytes_beyond_the_limit_are_counted_as_they_come(gateway: Gateway) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="adapter_model.safetensors"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 65_536

    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = await gateway.client.post("/v1/adapters", content=body(), headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
    assert leftovers(gateway) == []


async def test_an_upload_that_breaks_off_leaves_nothing_behind(
    gateway: Gateway, server: str
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="adapter_model.safetensors"\r\n\r\n'
        yield b"x" * 100_000
        uploads = gateway.resources.settings.data_dir / "uploads"
        async with httpx.AsyncClient() as other:
            while not any(path.stat().st_size for path in uploads.glob("*/*")):
                await other.get(f"{server}/livez")
        raise ConnectionAbortedError

    headers = gateway.headers | {"content-type": "multipart/form-data; boundary=b"}
    async with httpx.AsyncClient(headers=headers) as client:
        with pytest.raises(ConnectionAbortedError):
            await client.post(f"{server}/v1/adapters", content=body())
        while leftovers(gateway):
            await client.get(f"{server}/livez")


@pytest.mark.parametrize("end", [b"", b"\r\n--b", b"\r\n--b\r\n"])
async def test_a_form_that_ends_in_the_middle_is_refused(gateway: Gateway, end: bytes) -> None:
    start = b'--b\r\ncontent-disposition: form-data; name="name"\r\n\r\na'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = await gateway.client.post("/v1/adapters", content=start + end, headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_form")


async def test_a_name_with_its_tenant_is_told_to_come_without(
    gateway: Gateway, checkpoint: Path
) -> None:
    response = await upload(gateway, checkpoint, "acme/support")
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", "name")
    assert "without the tenant" in error["message"]


async def test_no_adapter_has_a_name_that_is_a_word_of_the_apis_paths(
    gateway: Gateway, checkpoint: Path
) -> None:
    paths = [p.split("/") for p in gateway.app.openapi()["paths"] if "/adapters/" in p]
    words = {parts[parts.index("adapters") + 1] for parts in paths}
    words = {word for word in words if not word.startswith("{")}
    assert words >= {"uploads", "import"}
    for word in sorted(words | {"audit"}):
        response = await upload(gateway, checkpoint, word)
        assert (response.status_code, error_of(response)["param"]) == (400, "name")
        assert word in error_of(response)["message"]


async def test_what_is_hardly_meant_is_told_with_the_version_and_its_upload(
    gateway: Gateway, tmp_path: Path
) -> None:
    content = build.tensors()
    for name in content:
        if "lora_B" in name:
            content[name] = np.zeros_like(content[name])
    made = await upload(gateway, build.save(tmp_path / "untrained", content=content))
    (warning,) = made.json()["warnings"]
    assert "every lora_B is zero" in warning
    (listed,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert listed["warnings"] == [warning]
    sound = await upload(gateway, build.save(tmp_path / "trained"))
    assert sound.json()["warnings"] == []


async def test_a_rank_and_modules_beyond_the_tenants_limits_are_told_with_all_other_problems(
    gateway: Gateway, tmp_path: Path
) -> None:
    limits = {"adapter_max_rank": 1, "adapter_max_modules": 1}
    async with gateway.resources.database.session() as session:
        change = directory.TenantChange(adapters=limits)
        await directory.change(session, Act(CLI, NOW), gateway.tenant.id, change)
    refused = await upload(gateway, build.save(tmp_path / "large", {"zzz": 1}))
    assert refused.json()["error"]["code"] == "invalid_adapter"
    fields = {problem["field"] for problem in refused.json()["error"]["details"]}
    assert fields == {"zzz", "r", "target_modules"}


async def test_a_disk_that_takes_no_more_is_503_and_leaves_nothing(gateway: Gateway) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    try:
        files = {TENSORS_FILE: (TENSORS_FILE, b"x" * 900_000), CONFIG_FILE: ("c", b"{}")}
        response = await gateway.client.post("/v1/adapters", data={"name": "a"}, files=files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (response.status_code, error_of(response)["code"]) == (503, "storage_unavailable")
    assert "retry-after" in response.headers
    assert leftovers(gateway) == []


async def test_a_store_that_cannot_be_written_is_503(gateway: Gateway, checkpoint: Path) -> None:
    gateway.resources.settings.adapters_dir.write_bytes(b"no folder")
    response = await upload(gateway, checkpoint)
    assert (response.status_code, error_of(response)["code"]) == (503, "storage_unavailable")


async def test_without_shapes_of_the_model_no_adapter_is_taken(
    gateway: Gateway, checkpoint: Path
) -> None:
    gateway.engine.model_info = model_info(shapes=None)
    response = await upload(gateway, checkpoint)
    assert (response.status_code, error_of(response)["code"]) == (503, "engine_unavailable")


async def test_bytes_that_were_published_for_another_base_model_conflict(
    gateway: Gateway, checkpoint: Path
) -> None:
    await upload(gateway, checkpoint)
    gateway.engine.model_info = model_info(name="other")
    response = await upload(gateway, checkpoint)
    assert (response.status_code, error_of(response)["code"]) == (409, "version_conflict")
    assert response.headers["x-should-retry"] == "false"


async def test_the_openai_client_uploads_and_calls_what_it_uploaded(
    gateway: Gateway, server: str, checkpoint: Path
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=gateway.key) as client:
        uploaded = await client.post(
            "/adapters",
            body={"name": "support"},
            files=files_of(checkpoint),
            options={"headers": {"content-type": "multipart/form-data"}},
            cast_to=object,
        )
        assert uploaded["id"] == "acme/support@1"
        assert "acme/support" in [model.id async for model in await client.models.list()]
        answer = await client.chat.completions.create(
            model="acme/support", messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        assert answer.model == "acme/support"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post(
                "/adapters",
                body={"name": "support"},
                files=files_of(checkpoint) | {CONFIG_FILE: (CONFIG_FILE, json.dumps({}))},
                options={"headers": {"content-type": "multipart/form-data"}},
                cast_to=object,
            )
        assert refused.value.code == "invalid_adapter"
