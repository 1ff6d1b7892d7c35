"""`loraplex adapter upload` sends a folder to a gateway, and goes on where it was broken off."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import Result
from tests.adapters import build
from tests.platform.conftest import Gateway
from tests.platform.shell import app
from typer.testing import CliRunner

from loraplex.adapters.checkpoint import TENSORS_FILE
from loraplex.platform.cli import adapter_upload


async def run(gateway: Gateway, server: str, *arguments: str) -> Result:
    environment = {"LORAPLEX_URL": server, "LORAPLEX_KEY": gateway.key}
    command = ["adapter", "upload", *arguments]
    return await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)


async def test_a_folder_is_published_in_pieces_with_progress(
    gateway: Gateway, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_upload, "PIECE_BYTES", 100)
    folder = build.save(tmp_path / "mine")
    size = (folder / TENSORS_FILE).stat().st_size
    result = await run(gateway, server, "support", str(folder), "--json")
    done = json.loads(result.stdout)
    assert (result.exit_code, done["version"]) == (0, "acme/support@1")
    assert done["digest"]
    assert done["self_test"]["passed"]
    assert f"{TENSORS_FILE}: 100 of {size:,} bytes" in result.stderr
    assert f"{TENSORS_FILE}: {size:,} of {size:,} bytes" in result.stderr
    assert gateway.key not in result.output


async def test_an_upload_that_was_broken_off_goes_on_where_it_was(
    gateway: Gateway, server: str, tmp_path: Path
) -> None:
    folder = build.save(tmp_path / "mine")
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    begun = await gateway.client.post(
        "/v1/adapters/uploads", json={"name": "support", "files": sizes}
    )
    upload = begun.json()["id"]
    await gateway.client.patch(
        f"/v1/adapters/uploads/{upload}/{TENSORS_FILE}",
        content=(folder / TENSORS_FILE).read_bytes()[:150],
        headers={"upload-offset": "0"},
    )
    result = await run(gateway, server, "support", str(folder), "--resume", upload)
    assert result.exit_code == 0
    assert result.stdout.startswith("Published acme/support@1 (")
    assert f"only the length of {TENSORS_FILE} could be compared" in result.stderr


async def begun(
    gateway: Gateway, server: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Id of an upload that the command began and was broken off in."""
    with monkeypatch.context() as patched:

        def broken(*_: object) -> None:
            raise OSError("gone")

        patched.setattr(adapter_upload, "_send_file", broken)
        assert (await run(gateway, server, "support", str(folder))).exit_code == 1
    shown = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    (upload,) = (one["id"] for one in shown if one["status"] == "uploading")
    return str(upload)


async def test_another_checkpoint_does_not_go_on_with_an_upload(
    gateway: Gateway, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build.save(tmp_path / "mine")
    upload = await begun(gateway, server, folder, monkeypatch)
    data = bytearray((folder / TENSORS_FILE).read_bytes())
    data[-1] ^= 1
    other = build.save(tmp_path / "other")
    (other / TENSORS_FILE).write_bytes(data)
    result = await run(gateway, server, "support", str(other), "--resume", upload)
    assert (result.exit_code, f"{TENSORS_FILE} is not the file" in result.stderr) == (1, True)
    (folder / "generation_config.json").write_text("{}")
    result = await run(gateway, server, "support", str(folder), "--resume", upload)
    assert (result.exit_code, "begun without generation_config.json" in result.stderr) == (1, True)


async def test_an_upload_of_another_name_and_one_that_is_over_are_told(
    gateway: Gateway, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build.save(tmp_path / "mine")
    upload = await begun(gateway, server, folder, monkeypatch)
    result = await run(gateway, server, "sales", str(folder), "--resume", upload)
    assert (result.exit_code, "is one of support, not of sales" in result.stderr) == (1, True)
    result = await run(gateway, server, "support", str(folder), "--resume", upload)
    assert (result.exit_code, "checking and testing" in result.stderr) == (0, True)
    assert "self-test: passed (" in result.stdout
    result = await run(gateway, server, "support", str(folder), "--resume", upload)
    assert (result.exit_code, "had ended already: ready" in result.stderr) == (0, True)
    assert "acme/support@1" in result.stdout
    upload = await begun(gateway, server, folder, monkeypatch)
    await gateway.client.delete(f"/v1/adapters/uploads/{upload}")
    result = await run(gateway, server, "support", str(folder), "--resume", upload)
    assert (result.exit_code, "had ended already: cancelled" in result.stderr) == (1, True)


async def test_a_refusal_and_a_gateway_that_is_not_there_are_told(
    gateway: Gateway, server: str, tmp_path: Path
) -> None:
    folder = build.save(tmp_path / "bad", {"zzz": 1})
    result = await run(gateway, server, "support", str(folder))
    assert result.exit_code == 1
    assert "zzz" in result.stderr
    result = await run(gateway, "http://127.0.0.1:9", "support", str(folder))
    assert (result.exit_code, "does not answer" in result.stderr) == (1, True)
    result = await run(gateway, "ftp://x", "support", str(folder))
    assert (result.exit_code, "no address" in result.stderr) == (1, True)
    (folder / TENSORS_FILE).unlink()
    result = await run(gateway, server, "support", str(folder))
    assert (result.exit_code, TENSORS_FILE in result.stderr) == (1, True)
