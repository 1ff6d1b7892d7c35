"""Uploads in pieces whose files are announced with their SHA-256."""

import hashlib
from pathlib import Path

import httpx
from tests.adapters import build
from tests.platform.conftest import Gateway

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE


async def sent(gateway: Gateway, announced: dict[str, bytes], files: dict[str, bytes]) -> str:
    """Id of an upload that has all its bytes."""
    told = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in announced.items()
    }
    begun = await gateway.client.post(
        "/v1/adapters/uploads", json={"name": "support", "files": told}
    )
    upload = str(begun.json()["id"])
    for name, data in files.items():
        answer = await gateway.client.patch(
            f"/v1/adapters/uploads/{upload}/{name}", content=data, headers={"upload-offset": "0"}
        )
        assert answer.status_code == 204
    return upload


async def complete(gateway: Gateway, upload: str) -> httpx.Response:
    return await gateway.client.post(f"/v1/adapters/uploads/{upload}/complete")


async def test_a_file_that_is_not_the_announced_one_is_told_by_name(
    gateway: Gateway, tmp_path: Path
) -> None:
    folder = build.save(tmp_path / "mine")
    files = {name: (folder / name).read_bytes() for name in (CONFIG_FILE, TENSORS_FILE)}
    data = files[TENSORS_FILE]
    mixed = await sent(gateway, files, files | {TENSORS_FILE: data[:-4] + b"abcd"})
    for answer in (await complete(gateway, mixed), await complete(gateway, mixed)):
        (problem,) = answer.json()["error"]["details"]
        assert (answer.status_code, problem["field"]) == (400, TENSORS_FILE)
        assert "SHA-256" in problem["reason"]
    good = await sent(gateway, files, files)
    shown = (await gateway.client.get(f"/v1/adapters/uploads/{good}")).json()
    assert shown["files"][TENSORS_FILE] == {
        "received": len(data),
        "total": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert (await complete(gateway, good)).json()["version"] == "acme/support@1"
