"""Adapters as one archive: what tools pack is taken, and nothing that is more than a file."""

import gzip
import io
import os
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters import build
from tests.platform.conftest import Gateway, error_of

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.platform.errors import BodyTooLarge, InvalidRequest
from loraplex.platform.settings import Settings
from loraplex.platform.upload_tar import MAX_MEMBERS, UploadTar

MIB = 1 << 20


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=gateway_database_url,
        max_body_bytes=2000,
        max_upload_bytes=MIB,
    )


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    return info


def archive(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def files(**others: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    named = {CONFIG_FILE: b"{}", TENSORS_FILE: b"x" * 1000, **others}
    return [(member(name, data), data) for name, data in named.items()]


def read(tmp_path: Path, data: bytes, kind: str = "application/x-tar") -> dict[str, bytes]:
    folder = tmp_path / "read"
    folder.mkdir()
    tar = UploadTar(kind, folder, MIB)
    try:
        tar.feed(data)
        tar.finish()
    finally:
        tar.close()
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def packed(folder: Path, *options: str) -> bytes:
    command = ["tar", "-c", *options, "-C", str(folder.parent), folder.name]
    return subprocess.run(command, check=True, capture_output=True).stdout


@pytest.mark.parametrize("options", [[], ["-z"], ["--format=pax"]])
async def test_the_archive_of_a_folder_is_published_under_the_name_of_the_query(
    gateway: Gateway, tmp_path: Path, options: list[str]
) -> None:
    folder = build.save(tmp_path / "mine")
    (folder / "README.md").write_text("# Mine")
    (folder / "checkpoint-10").mkdir()
    (folder / "checkpoint-10" / ("long" * 40 + ".txt")).write_text("x")
    kind = "application/gzip" if "-z" in options else "application/x-tar"
    response = await gateway.client.post(
        "/v1/adapters?name=support",
        content=packed(folder, *options),
        headers={"content-type": kind},
    )
    assert (response.status_code, response.json()["id"]) == (201, "acme/support@1")
    (upload,) = (await gateway.client.get("/v1/adapters/uploads")).json()["data"]
    assert (upload["status"], upload["version"]) == ("ready", "acme/support@1")
    assert set(upload["files"]) == {CONFIG_FILE, TENSORS_FILE}


async def test_an_archive_under_another_content_type_is_told_the_right_one(
    gateway: Gateway, tmp_path: Path
) -> None:
    folder = build.save(tmp_path / "mine")
    for data, headers, word in (
        (packed(folder), {}, "application/x-tar or application/gzip"),
        (
            packed(folder, "-z"),
            {"content-type": "application/x-tar"},
            "this is gzip; send it as application/gzip",
        ),
    ):
        answer = await gateway.client.post(
            "/v1/adapters?name=support", content=data, headers=headers
        )
        assert answer.status_code == 400
        assert word in error_of(answer)["message"]


async def test_an_archive_needs_a_name(gateway: Gateway) -> None:
    headers = {"content-type": "application/x-tar"}
    response = await gateway.client.post("/v1/adapters", content=archive(*files()), headers=headers)
    assert (response.status_code, error_of(response)["param"]) == (400, "name")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_forms_of_archives_are_read_alike(tmp_path: Path, form: int) -> None:
    name = "d" * 60 + "/" + "e" * 90
    members = [(member(f"{name}/{info.name}", data), data) for info, data in files()]
    found = read(tmp_path, archive(*members, form=form))
    assert found == {CONFIG_FILE: b"{}", TENSORS_FILE: b"x" * 1000}


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("/etc/adapter_config.json", tarfile.REGTYPE, "no path inside"),
        ("../adapter_config.json", tarfile.REGTYPE, "no path inside"),
        ("a/../../adapter_config.json", tarfile.REGTYPE, "no path inside"),
        ("a\\adapter_config.json", tarfile.REGTYPE, "no path inside"),
        ("a\nb", tarfile.REGTYPE, "no path inside"),
        ("..", tarfile.DIRTYPE, "no path inside"),
        ("link", tarfile.SYMTYPE, "symbolic link"),
        ("adapter_config.json", tarfile.SYMTYPE, "symbolic link"),
        ("link", tarfile.LNKTYPE, "hard link"),
        ("null", tarfile.CHRTYPE, "device"),
        ("disk", tarfile.BLKTYPE, "device"),
        ("pipe", tarfile.FIFOTYPE, "pipe"),
        ("sparse", tarfile.GNUTYPE_SPARSE, "sparse"),
        ("odd", b"Z", "unknown kind"),
        ("adapter_model.bin", tarfile.REGTYPE, "safetensors"),
        ("adapter_model.BIN", tarfile.REGTYPE, "safetensors"),
        ("sub/adapter_config.json", tarfile.REGTYPE, "twice"),
        ("adapter_config.json", tarfile.REGTYPE, "twice"),
    ],
)
def test_a_member_that_is_no_plain_file_of_one_folder_is_refused(
    tmp_path: Path, name: str, kind: bytes, words: str
) -> None:
    first = files() if "twice" in words else []
    with pytest.raises(InvalidRequest, match=words):
        read(tmp_path, archive(*first, (member(name, kind=kind), b"")))
    assert {path.name for path in tmp_path.iterdir()} == {"read"}


@pytest.mark.parametrize("key", ["size", "GNU.sparse.map", "linkpath"])
def test_extended_headers_that_change_what_a_member_is_are_refused(
    tmp_path: Path, key: str
) -> None:
    info = member("a", b"x")
    info.pax_headers = {key: "5"}
    with pytest.raises(InvalidRequest, match="extended header"):
        read(tmp_path, archive((info, b"x")))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_name_in_an_extended_header_is_checked_like_any_other(tmp_path: Path, form: int) -> None:
    info = member("../" + "x" * 200, b"x")
    with pytest.raises(InvalidRequest, match="no path inside"):
        read(tmp_path, archive((info, b"x"), form=form))


def test_a_bomb_is_refused_before_it_is_large(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\0" * (64 * MIB))
    with pytest.raises((InvalidRequest, BodyTooLarge)):
        read(tmp_path, bomb, "application/gzip")
    folder = tmp_path / "sized"
    folder.mkdir()
    tar = UploadTar("application/gzip", folder, 1 << 40)
    with pytest.raises(InvalidRequest, match="grows more than"):
        tar.feed(gzip.compress(archive(*files(**{"tokenizer.json": b"\0" * (32 * MIB)}))))
    tar.close()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8 * MIB


def test_what_comes_out_is_bounded_however_it_is_packed(tmp_path: Path) -> None:
    data = archive(*files(**{"tokenizer.json": os.urandom(2 * MIB)}))
    for number, (kind, content) in enumerate(
        [("application/x-tar", data), ("application/gzip", gzip.compress(data))]
    ):
        (tmp_path / f"n{number}").mkdir()
        with pytest.raises(BodyTooLarge):
            read(tmp_path / f"n{number}", content, kind)


def test_many_members_are_refused(tmp_path: Path) -> None:
    tar = UploadTar("application/x-tar", tmp_path, 1 << 40)
    with pytest.raises(InvalidRequest, match="members"):
        tar.feed(archive(*((member(f"f{i}"), b"") for i in range(MAX_MEMBERS + 1))))


@pytest.mark.parametrize("cut", [0, 100, 512, 700, 1024, 2000])
def test_an_archive_that_ends_in_the_middle_is_refused(tmp_path: Path, cut: int) -> None:
    data = archive(*files())
    for number, kind in enumerate(("application/x-tar", "application/gzip")):
        (tmp_path / f"n{number}").mkdir()
        content = gzip.compress(data)[: -1 - cut % 50] if "gzip" in kind else data[:cut]
        with pytest.raises(InvalidRequest):
            read(tmp_path / f"n{number}", content, kind)


@pytest.mark.parametrize("more", [b"x", b"x" * 512])
def test_what_follows_the_end_is_refused(tmp_path: Path, more: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"follows|grows"):
        read(tmp_path, gzip.compress(archive(*files())) + more, "application/gzip")


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_noise_is_refused_or_read_and_never_written_elsewhere(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int
) -> None:
    data = bytearray(archive(*files()))
    data[place : place + len(noise)] = noise
    folder = tmp_path_factory.mktemp("noise")
    with suppress(InvalidRequest, BodyTooLarge):
        read(folder, bytes(data))
    assert {path.name for path in folder.rglob("*")} <= {
        "read",
        *("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"),
    }


@given(st.lists(st.integers(1, 700), max_size=30), st.booleans())
def test_an_archive_is_read_alike_however_its_bytes_are_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], is_gzip: bool
) -> None:
    folder = tmp_path_factory.mktemp("tar")
    data = archive(*files(**{"README.md": b"y" * 513}))
    data = gzip.compress(data) if is_gzip else data
    tar = UploadTar("application/gzip" if is_gzip else "application/x-tar", folder, MIB)
    for cut in cuts:
        tar.feed(data[:cut])
        data = data[cut:]
    tar.feed(data)
    tar.finish()
    assert (folder / TENSORS_FILE).read_bytes() == b"x" * 1000
    assert {path.name for path in folder.iterdir()} == {CONFIG_FILE, TENSORS_FILE}
