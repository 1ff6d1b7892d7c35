"""Forms that carry adapters: read as they come, in whatever pieces; swept when they are left."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.receiving import ABANDONED_S, received, remove_abandoned
from loraplex.platform.settings import Settings
from loraplex.platform.upload_form import UploadForm


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


async def test_files_are_on_disk_before_the_form_has_ended(settings: Settings) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="adapter_config.json"\r\n\r\n'
        yield b"x" * 300_000
        (file,) = settings.data_dir.glob("uploads/*/*")
        assert file.stat().st_size > 200_000
        yield b'\r\n--b\r\ncontent-disposition: form-data; name="adapter_model.safetensors"\r\n\r\n'
        yield b"y\r\n--b--\r\n"

    async with received(settings, "multipart/form-data; boundary=b", chunks()) as form:
        assert (form.folder / TENSORS_FILE).read_bytes() == b"y"
    assert not form.folder.exists()


@given(st.lists(st.integers(1, 200), max_size=20), st.binary(max_size=200))
def test_a_form_is_read_alike_however_its_bytes_are_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], content: bytes
) -> None:
    parts = {"name": b"support", CONFIG_FILE: b"{}", TENSORS_FILE: b"a\r\n--c\r\n" + content}
    form = b"".join(
        f'--bound\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in parts.items()
    )
    form += b"--bound--\r\n"
    folder = tmp_path_factory.mktemp("form")
    upload_form = UploadForm("multipart/form-data; boundary=bound", folder, ("name",))
    for cut in cuts:
        upload_form.feed(form[:cut])
        form = form[cut:]
    upload_form.feed(form)
    assert upload_form.finish() == {"name": "support"}
    upload_form.close()
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        name: parts[name] for name in (CONFIG_FILE, TENSORS_FILE)
    }


def test_a_long_field_is_refused(tmp_path: Path) -> None:
    form = UploadForm("multipart/form-data; boundary=b", tmp_path, ("name",))
    form.feed(b'--b\r\ncontent-disposition: form-data; name="name"\r\n\r\n')
    with pytest.raises(InvalidRequest, match="1024"):
        form.feed(b"x" * 1025)


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
