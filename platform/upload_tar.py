"""Reads an upload that is one tar archive, plain or gzipped, as it comes: the files of an adapter
go to disk, others are skipped, and nothing that is more than a file is taken.

The header is POSIX ustar's (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html),
with the extended headers that GNU tar and pax write for long names.
"""

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from loraplex.platform.errors import BodyTooLarge, InvalidRequest
from loraplex.platform.upload_files import (
    ADAPTER_FILES,
    GZIP_TYPE,
    TAR_TYPE,
    check_files,
    is_pickle,
)

BLOCK = tarfile.BLOCKSIZE
MAX_MEMBERS = 2000
MAX_EXTENDED_BYTES = 64 * 1024
MAX_RATIO = 200
"""No checkpoint shrinks so much; checked once a megabyte has come out."""
_CHUNK_BYTES = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_EXTENDED = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_PLAIN = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_KINDS: Mapping[bytes, str] = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGLINK: "a link with a long name",
}


class UploadTar:
    """An archive that is being received; call `feed` with its bytes, then `finish`. Both block."""

    def __init__(self, content_type: str, folder: Path, max_bytes: int) -> None:
        """Files are written into `folder`; `max_bytes` bounds what comes out of the archive."""
        is_gzip = content_type != TAR_TYPE
        self._inflate = zlib.decompressobj(wbits=31) if is_gzip else None
        self._folder = folder
        self._max_bytes = max_bytes
        self._num_in = self._num_out = 0
        self._pending = bytearray()
        self._left = 0
        """Bytes of the member at hand that have not come, padding included."""
        self._padding = 0
        self._extended: bytearray | None = None
        """Content of an extended header that is coming."""
        self._extended_kind = b""
        self._long_name: str | None = None
        self._file: IO[bytes] | None = None
        self._files: set[str] = set()
        self._home: PurePosixPath | None = None
        """Folder of the archive that the adapter's files are in."""
        self._num_members = 0
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            InvalidRequest: they hold what is not taken, or are no archive.
            BodyTooLarge: more comes out than an upload may have.
            OSError: they cannot be written.
        """
        self._num_in += len(chunk)
        if self._inflate is None:
            if self._num_in == len(chunk) and chunk.startswith(_GZIP_MAGIC):
                raise _malformed(f"this is gzip; send it as {GZIP_TYPE}")
            self._take(chunk)
            return
        try:
            while chunk and not self._inflate.eof:
                self._take(self._inflate.decompress(chunk, _CHUNK_BYTES))
                chunk = self._inflate.unconsumed_tail
        except zlib.error as error:
            raise _malformed(f"it is no gzip stream ({error})") from None
        if chunk or self._inflate.unused_data:
            raise _malformed("something follows the gzip stream")

    def finish(self) -> Mapping[str, str]:
        """No fields, once all is there. Raises InvalidRequest naming what is missing."""
        if self._inflate is not None and not self._inflate.eof:
            raise _malformed("the gzip stream ends in the middle")
        if not self._ended:
            raise _malformed("it ends in the middle")
        check_files(self._files)
        return {}

    def close(self) -> None:
        """Close what is open, however far it came."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, data: bytes) -> None:
        self._num_out += len(data)
        if self._num_out > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)
        if self._num_out > max(_CHUNK_BYTES, MAX_RATIO * self._num_in):
            raise _malformed(f"it grows more than {MAX_RATIO} times when it is unpacked")
        self._pending += data
        while self._pending and self._step():
            pass

    def _step(self) -> bool:
        """Do one piece of work with the pending bytes; false where more must come first."""
        if self._left:
            self._write()
            return True
        if len(self._pending) < BLOCK:
            return False
        block = bytes(self._pending[:BLOCK])
        del self._pending[:BLOCK]
        if self._ended:
            if any(block):
                raise _malformed("something follows its end")
        elif any(block):
            self._begin(block)
        else:
            self._ended = True
        return True

    def _write(self) -> None:
        data = self._pending[: self._left]
        del self._pending[: self._left]
        self._left -= len(data)
        content = data[: max(0, len(data) - max(0, self._padding - self._left))]
        if self._extended is not None:
            self._extended += content
        elif self._file is not None:
            self._file.write(content)
        if not self._left:
            self._end_member()

    def _begin(self, block: bytes) -> None:
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise _malformed(f"a header is broken ({error})") from None
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise _malformed(f"it has more than {MAX_MEMBERS} members")
        if member.size < 0:
            raise _malformed("a member has a size below zero")
        if member.type in _EXTENDED or member.type == tarfile.GNUTYPE_LONGNAME:
            if member.size > MAX_EXTENDED_BYTES:
                raise _malformed("an extended header is too long")
            self._extended, self._extended_kind = bytearray(), member.type
        else:
            self._open(member)
        self._padding = -member.size % BLOCK
        self._left = member.size + self._padding
        if not self._left:
            self._end_member()

    def _open(self, member: tarfile.TarInfo) -> None:
        name, self._long_name = self._long_name or member.name, None
        path = _checked(name)
        if member.type == tarfile.DIRTYPE:
            if member.size:
                raise _malformed(f"the folder {_shown(name)} has content")
            return
        if member.type not in _PLAIN:
            kind = _KINDS.get(member.type, "of an unknown kind")
            raise InvalidRequest(
                f"The archive's {_shown(name)} is {kind}; only files are taken.",
                None,
                "invalid_tar",
            )
        if is_pickle(path.name):
            raise InvalidRequest(
                f"The archive's {_shown(name)} can run code when read; save with safetensors.",
                None,
                "invalid_tar",
            )
        if path.name in ADAPTER_FILES:
            self._open_file(path)

    def _open_file(self, path: PurePosixPath) -> None:
        if self._home not in {None, path.parent} or path.name in self._files:
            raise InvalidRequest(
                f"The archive has {path.name} twice, or files of an adapter in several folders; "
                "pack the folder of one adapter.",
                path.name,
                "invalid_tar",
            )
        self._home = path.parent
        self._files.add(path.name)
        self._file = (self._folder / path.name).open("xb")

    def _end_member(self) -> None:
        self.close()
        if self._extended is not None:
            data, self._extended = bytes(self._extended), None
            if self._extended_kind == tarfile.GNUTYPE_LONGNAME:
                self._long_name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            else:
                self._read_records(data)

    def _read_records(self, data: bytes) -> None:
        """Records `LENGTH KEY=VALUE\\n` of a pax header: of those, a name counts."""
        while data:
            head, _, _ = data.partition(b" ")
            if not (head.isdigit() and len(head) < 7 and len(head) < int(head) <= len(data)):
                raise _malformed("an extended header is broken")
            record, data = data[len(head) + 1 : int(head) - 1], data[int(head) :]
            key, _, value = record.partition(b"=")
            if key == b"path":
                self._long_name = value.decode("utf-8", "surrogateescape")
            elif key in {b"size", b"linkpath"} or key.startswith(b"GNU.sparse"):
                raise _malformed(f"its extended header {key.decode()} is not taken")


def _checked(name: str) -> PurePosixPath:
    """A member's path below the archive's root. Raises InvalidRequest for any other."""
    path = PurePosixPath(name)
    if (
        not name
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or not name.isprintable()
    ):
        raise InvalidRequest(
            f"The archive's member {_shown(name)} is no path inside a folder.", None, "invalid_tar"
        )
    return path


def _shown(name: str) -> str:
    return ascii(name[:80])


def _malformed(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The archive cannot be read: {reason}.", None, "invalid_tar")
