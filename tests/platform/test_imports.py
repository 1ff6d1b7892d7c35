"""Adapters by reference: from the platform's own sources, by names, and never from elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.adapters import build
from tests.platform.conftest import Gateway, error_of
from tests.services.hub import running_hub
from tests.services.s3 import S3Server

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.platform.errors import BodyTooLarge, InvalidRequest, SourceUnavailable
from loraplex.platform.settings import Settings, child_environment
from loraplex.platform.sources import FolderSource, HubSource, RemoteSource, open_source


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
        adapter_sources={"share": f"file://{shared}", "gone": "file:///nowhere", "hub": "hf://"},
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
    gateway.resources.settings.adapter_sources["bucket"] = f"s3://{bucket}/loras"
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
        RemoteSource("memory://x").sizes(path)
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
        source.fetch("team/support-v2", {CONFIG_FILE: 3}, into)


async def test_a_rejected_import_is_listed_with_its_problems(
    gateway: Gateway, shared: Path
) -> None:
    build.save(shared / "bad", {"zzz": 1})
    assert (await ask(gateway, "bad")).status_code == 400
    (upload,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert (upload["status"], upload["problems"][0]["field"]) == ("rejected", "zzz")


async def test_a_hub_that_cannot_be_reached_is_told_so(gateway: Gateway) -> None:
    response = await ask(gateway, "someone/adapter", "hub")
    assert (response.status_code, error_of(response)["code"]) == (503, "source_unavailable")


@pytest.mark.parametrize("path", ["adapter", "a/b/c", "a/..", "../b", "a/b@../../x", "a b/c", "/a"])
def test_a_path_of_a_hub_is_a_repository(path: str) -> None:
    with pytest.raises(InvalidRequest, match="repository"):
        HubSource("").sizes(path)


def test_a_source_with_an_unknown_scheme_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable):
        open_source("nothing://x").sizes("a")


def test_sources_reach_child_processes_as_json(settings: Settings) -> None:
    environment = child_environment(settings)
    assert '"hub": "hf://"' in environment["LORAPLEX_ADAPTER_SOURCES"]


def test_an_adapter_of_a_hub_is_fetched_file_by_file(tmp_path: Path) -> None:
    """In a process of its own: the library reads the hub's address when it is loaded."""
    folder = build.save(tmp_path / "hub" / "someone" / "adapter")
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    into = tmp_path / "into"
    into.mkdir()
    code = (
        "import sys, json; from pathlib import Path\n"
        "from loraplex.platform.errors import InvalidRequest\n"
        "from loraplex.platform.sources import open_source\n"
        "source = open_source('hf://someone')\n"
        "sizes = source.sizes('adapter@main')\n"
        "source.fetch('adapter@main', sizes, Path(sys.argv[1]))\n"
        "try: source.sizes('absent')\n"
        "except InvalidRequest as error: print(json.dumps([sizes, error.code]))"
    )
    with running_hub(tmp_path / "hub") as address:
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        environment |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        child = subprocess.run(
            [sys.executable, "-c", code, str(into)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert child.returncode == 0, child.stderr
    sizes, told = json.loads(child.stdout)
    assert (set(sizes), told) == ({CONFIG_FILE, TENSORS_FILE}, "path_not_found")
    for name in (CONFIG_FILE, TENSORS_FILE):
        assert (into / name).read_bytes() == (folder / name).read_bytes()
    assert not list(into.rglob("*.bin"))
