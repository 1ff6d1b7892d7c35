"""Adapters by reference: from the platform's own sources, by names, and never from elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from pydantic import TypeAdapter
from tests.adapters import build
from tests.platform.conftest import Gateway, error_of
from tests.services.hub import running_hub
from tests.services.s3 import S3Server

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.platform.child_environment import child_environment
from loraplex.platform.errors import BodyTooLarge, InvalidRequest, SourceUnavailable
from loraplex.platform.import_source import ImportSource
from loraplex.platform.settings import Settings
from loraplex.platform.sources import FolderSource, Found, HubSource, RemoteSource, open_source


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = build.save(tmp_path / "shared" / "team" / "support-v2")
    (folder / "README.md").write_text("# Support")
    return tmp_path / "shared"


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str, shared: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=gateway_database_url,
        max_upload_bytes=100_000,
        adapter_sources={
            "share": {"url": f"file://{shared}", "tenants": ["acme"]},
            "gone": {"url": "file:///nowhere", "tenants": ["*"]},
            "hub": {"url": "hf://", "tenants": ["*"]},
            "own": f"file://{shared}/{{tenant}}",
            "ours": f"file://{shared}",
        },
    )


async def ask(gateway: Gateway, path: str, source: str = "share") -> httpx.Response:
    body = {"name": "support", "source": source, "path": path}
    return await gateway.client.post("/v1/adapters/import", json=body)


def leftovers(gateway: Gateway) -> list[Path]:
    return list((gateway.resources.settings.data_dir / "uploads").glob("*"))


async def test_an_adapter_of_a_shared_folder_is_published(gateway: Gateway) -> None:
    response = await ask(gateway, "team/support-v2")
    assert (response.status_code, response.json()["id"]) == (201, "acme/support@1")
    (upload,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert (upload["source"], upload["status"]) == ("share:team/support-v2", "ready")
    assert set(upload["files"]) == {CONFIG_FILE, TENSORS_FILE}
    assert leftovers(gateway) == []


async def test_an_adapter_of_a_bucket_is_published(
    gateway: Gateway, shared: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket = s3.make_bucket()
    for name in (CONFIG_FILE, TENSORS_FILE):
        data = (shared / "team" / "support-v2" / name).read_bytes()
        async with httpx.AsyncClient() as client:
            await client.put(f"{s3.url}/{bucket}/loras/mine/{name}", content=data)
    source = ImportSource(url=f"s3://{bucket}/loras", tenants=("acme",))
    gateway.resources.settings.adapter_sources["bucket"] = source
    response = await ask(gateway, "mine", "bucket")
    assert (response.status_code, response.json()["id"]) == (201, "acme/support@1")
    absent = await ask(gateway, "yours", "bucket")
    assert (absent.status_code, error_of(absent)["code"]) == (400, "path_not_found")


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "..", "/etc", "team/../../data", "team//x", "team/", "team\\x", "a\nb", "~/x"),
        *("file:///etc", "team/.hidden", "a" * 301, "team/x\0", "s3://other/x", "%2e%2e/x"),
    ],
)
async def test_a_path_that_is_no_plain_relative_name_is_refused(
    gateway: Gateway, path: str
) -> None:
    response = await ask(gateway, path)
    assert (response.status_code, error_of(response)["param"]) == (400, "path")
    with pytest.raises(InvalidRequest):
        RemoteSource("memory://x").find(path)
    assert (await gateway.client.get("/v1/adapters/uploads")).json()["data"] == []


async def test_links_that_lead_out_of_the_folder_are_not_followed(
    gateway: Gateway, shared: Path, tmp_path: Path
) -> None:
    outside = build.save(tmp_path / "outside")
    (shared / "linked").symlink_to(outside)
    (shared / "files").mkdir()
    for name in (CONFIG_FILE, TENSORS_FILE):
        (shared / "files" / name).symlink_to(outside / name)
    (shared / "inside").symlink_to(shared / "team")
    for path in ("linked", "files"):
        assert error_of(await ask(gateway, path))["param"] == "path"
    assert (await ask(gateway, "inside/support-v2")).status_code == 201


async def test_an_unknown_source_is_refused_with_those_there_are(gateway: Gateway) -> None:
    error = error_of(await ask(gateway, "x", "other"))
    assert error["param"] == "source"
    assert "share" in error["message"]
    assert "file://" not in error["message"]


async def test_a_source_that_is_not_there_and_an_absent_adapter_tell_no_path_of_the_machine(
    gateway: Gateway, shared: Path
) -> None:
    for response in (await ask(gateway, "x", "gone"), await ask(gateway, "absent")):
        assert response.status_code == 400
        assert str(shared) not in response.text
        assert "nowhere" not in response.text


async def test_what_is_too_large_is_refused_before_it_is_fetched(
    gateway: Gateway, shared: Path
) -> None:
    large = build.save(shared / "large")
    os.truncate(large / TENSORS_FILE, 200_000)
    assert (await ask(gateway, "large")).status_code == 413
    assert (await gateway.client.get("/v1/adapters/uploads")).json()["data"] == []


def test_a_file_that_grew_since_it_was_measured_is_refused(shared: Path, tmp_path: Path) -> None:
    source = FolderSource(shared)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(BodyTooLarge):
        source.fetch(Found("team/support-v2", {CONFIG_FILE: 3}), into)


async def test_a_rejected_import_is_listed_with_its_problems(
    gateway: Gateway, shared: Path
) -> None:
    build.save(shared / "bad", {"zzz": 1})
    assert (await ask(gateway, "bad")).status_code == 400
    (upload,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert (upload["status"], upload["problems"][0]["field"]) == ("rejected", "zzz")


async def test_an_import_whose_files_cannot_be_fetched_is_listed_as_cancelled(
    gateway: Gateway, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(source: FolderSource, found: Found, into: Path) -> None:
        shutil.rmtree(shared / "team")
        real(source, found, into)

    real = FolderSource.fetch
    monkeypatch.setattr(FolderSource, "fetch", gone)
    assert error_of(await ask(gateway, "team/support-v2"))["code"] == "path_not_found"
    (upload,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert upload["status"] == "cancelled"
    assert leftovers(gateway) == []


async def test_a_hub_that_cannot_be_reached_is_told_so(gateway: Gateway) -> None:
    response = await ask(gateway, "someone/adapter", "hub")
    assert (response.status_code, error_of(response)["code"]) == (503, "source_unavailable")


@pytest.mark.parametrize("path", ["adapter", "a/b/c", "a/..", "../b", "a/b@../../x", "a b/c", "/a"])
def test_a_path_of_a_hub_is_a_repository(path: str) -> None:
    with pytest.raises(InvalidRequest, match="repository"):
        HubSource("").find(path)


def test_a_source_with_an_unknown_scheme_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable):
        open_source(ImportSource(url="nothing://x"), "acme").find("a")


def test_sources_reach_child_processes_as_json(settings: Settings) -> None:
    environment = child_environment(settings)
    read = TypeAdapter(dict[str, ImportSource]).validate_json
    assert read(environment["LORAPLEX_ADAPTER_SOURCES"]) == settings.adapter_sources
    assert "nowhere" not in repr(settings)


async def test_a_source_is_there_for_the_tenants_alone_that_the_operator_names(
    gateway: Gateway,
) -> None:
    _, key = await gateway.make_tenant("other")
    body = {"name": "support", "source": "share", "path": "team/support-v2"}
    refused = await gateway.client.post(
        "/v1/adapters/import", json=body, headers={"authorization": f"Bearer {key}"}
    )
    absent = await gateway.client.post(
        "/v1/adapters/import",
        json=body | {"source": "other"},
        headers={"authorization": f"Bearer {key}"},
    )
    told = error_of(refused)["message"]
    assert (refused.status_code, error_of(refused)["param"]) == (400, "source")
    assert told.replace("share", "other") == error_of(absent)["message"]
    assert told.endswith("known: gone, hub, own.")


async def test_a_url_alone_is_for_the_operator(gateway: Gateway, admin: httpx.AsyncClient) -> None:
    refused = await ask(gateway, "team/support-v2", "ours")
    assert error_of(refused)["param"] == "source"
    body = {"name": "support", "source": "ours", "path": "team/support-v2"}
    made = await admin.post("/tenants/acme/adapters/import", json=body)
    assert (made.status_code, made.json()["id"]) == (201, "acme/support@1")


async def test_a_source_with_a_place_for_each_tenant_shows_each_its_own_alone(
    gateway: Gateway, shared: Path
) -> None:
    build.save(shared / "acme" / "mine")
    (shared / "acme" / "theirs").symlink_to(shared / "team")
    assert (await ask(gateway, "mine", "own")).status_code == 201
    for path in ("theirs/support-v2", "../team/support-v2", "team/support-v2"):
        assert error_of(await ask(gateway, path, "own"))["param"] == "path"


ON_A_HUB = """
import json, sys
from pathlib import Path
from loraplex.platform.import_source import ImportSource
from loraplex.platform.errors import (BodyTooLarge, InvalidRequest)
from loraplex.platform.sources import Found, open_source

def trial(work):
    try:
        return work()
    except (BodyTooLarge, InvalidRequest) as error:
        return type(error).__name__, getattr(error, "code", "")

source = open_source(ImportSource(url="hf://someone"), "acme")
found = source.find("adapter@main")
source.fetch(found, Path(sys.argv[1]))
less = Found(found.path, dict.fromkeys(found.sizes, 3), found.revision)
private = ImportSource(url="hf://private")
trusted = ImportSource(url="hf://private", use_hub_token=True)
print(json.dumps({
    "sizes": found.sizes,
    "grown": trial(lambda: source.fetch(less, Path(sys.argv[2]))),
    "absent": trial(lambda: source.find("absent")),
    "private": trial(lambda: open_source(private, "acme").find("adapter")),
    "trusted": len(open_source(trusted, "acme").find("adapter").sizes),
}))
"""


def test_an_adapter_of_a_hub_is_fetched_file_by_file(tmp_path: Path) -> None:
    """In a process of its own: the library reads the hub's address when it is loaded."""
    folder = build.save(tmp_path / "hub" / "someone" / "adapter")
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    into = tmp_path / "into"
    into.mkdir()
    build.save(tmp_path / "hub" / "private" / "adapter")
    other = tmp_path / "other"
    other.mkdir()
    with running_hub(tmp_path / "hub") as address:
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        environment |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        environment["HF_TOKEN"] = "hf_x"
        child = subprocess.run(
            [sys.executable, "-c", ON_A_HUB, str(into), str(other)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    absent = ["InvalidRequest", "path_not_found"]
    assert set(told["sizes"]) == {CONFIG_FILE, TENSORS_FILE}
    assert told["grown"][0] == "BodyTooLarge"
    assert [told["absent"], told["private"], told["trusted"]] == [absent, absent, 2]
    for name in (CONFIG_FILE, TENSORS_FILE):
        assert (into / name).read_bytes() == (folder / name).read_bytes()
    assert not list(into.rglob("*.bin"))
