"""Uploads of 200 MB take a small part of that in memory, in whichever way they come."""

import tarfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.platform.conftest import Gateway

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.platform.settings import Settings

MIB = 1 << 20
SIZE = 200 * MIB
MAX_MEMORY = 24 * MIB
PART = '--b\r\ncontent-disposition: form-data; name="{}"\r\n\r\n'


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(data_dir=tmp_path, database_url=gateway_database_url)


async def data() -> AsyncIterator[bytes]:
    for _ in range(SIZE // MIB):
        yield bytes(MIB)


async def form() -> AsyncIterator[bytes]:
    yield f"{PART.format('name')}a\r\n{PART.format(CONFIG_FILE)}{{}}\r\n".encode()
    yield PART.format(TENSORS_FILE).encode()
    async for chunk in data():
        yield chunk
    yield b"\r\n--b--\r\n"


async def archive() -> AsyncIterator[bytes]:
    header = tarfile.TarInfo(TENSORS_FILE)
    header.size = SIZE
    yield header.tobuf()
    async for chunk in data():
        yield chunk
    yield tarfile.TarInfo(CONFIG_FILE).tobuf() + bytes(1024)


async def send_form(gateway: Gateway) -> httpx.Response:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    return await gateway.client.post("/v1/adapters", content=form(), headers=headers)


async def send_archive(gateway: Gateway) -> httpx.Response:
    headers = {"content-type": "application/x-tar"}
    return await gateway.client.post("/v1/adapters?name=a", content=archive(), headers=headers)


async def send_piece(gateway: Gateway) -> httpx.Response:
    body = {"name": "a", "files": {CONFIG_FILE: 2, TENSORS_FILE: SIZE}}
    begun = await gateway.client.post("/v1/adapters/uploads", json=body)
    url = f"/v1/adapters/uploads/{begun.json()['id']}/{TENSORS_FILE}"
    headers = {"upload-offset": "0"}
    return await gateway.client.patch(url, content=data(), headers=headers)


@pytest.mark.parametrize(
    ("send", "status"), [(send_form, 400), (send_archive, 400), (send_piece, 204)]
)
async def test_a_large_upload_takes_little_memory(
    gateway: Gateway, send: object, status: int
) -> None:
    tracemalloc.start()
    try:
        response = await send(gateway)  # type: ignore[operator]  # one of the ways above
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == status  # zeros are no tensors
    assert peak < MAX_MEMORY
