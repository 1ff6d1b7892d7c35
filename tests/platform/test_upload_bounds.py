"""What uploads are held to beside their content: names, limits of the tenant; and what stays."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from tests.adapters import build
from tests.platform.conftest import NOW, Gateway, error_of
from tests.platform.test_uploads import upload

from loraplex.adapters.checkpoint import CONFIG_FILE
from loraplex.platform.receiving import ABANDONED_S, remove_abandoned
from loraplex.platform.settings import Settings
from loraplex.tenants import directory
from loraplex.tenants.audit import Act
from loraplex.tenants.limits import AdapterLimits


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return build.save(tmp_path / "mine")


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
    limits = AdapterLimits(adapter_max_rank=1, adapter_max_modules=1)
    async with gateway.resources.database.session() as session:
        change = directory.TenantChange(adapters=limits)
        await directory.change(session, Act("test", NOW), gateway.tenant.id, change)
    refused = await upload(gateway, build.save(tmp_path / "large", {"zzz": 1}))
    assert refused.json()["error"]["code"] == "invalid_adapter"
    fields = {problem["field"] for problem in refused.json()["error"]["details"]}
    assert fields == {"zzz", "r", "target_modules"}


async def test_what_killed_processes_left_is_removed_once_it_is_old(settings: Settings) -> None:
    now_s = time.time()
    for name, age_s in (("old", ABANDONED_S + 10), ("new", 10)):
        folder = settings.data_dir / "uploads" / name
        folder.mkdir(parents=True)
        (folder / CONFIG_FILE).write_bytes(b"x")
        for path in (folder / CONFIG_FILE, folder):
            os.utime(path, (now_s - age_s, now_s - age_s))
    remove_abandoned(settings, now_s)
    assert [path.name for path in (settings.data_dir / "uploads").iterdir()] == ["new"]
    deep = settings.data_dir / "uploads" / "new" / "files" / CONFIG_FILE
    deep.parent.mkdir()
    deep.write_bytes(b"x")
    for path in (settings.data_dir / "uploads" / "new", deep.parent):
        os.utime(path, (0, 0))
    remove_abandoned(settings, now_s)
    assert deep.exists(), "bytes came to it a moment ago"
