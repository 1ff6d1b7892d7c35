"""Reads an upload (`multipart/form-data`, RFC 7578) as it comes: files go to disk, never to memory.

One field `name`, and the files of an adapter; anything else is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from loraplex.platform.errors import InvalidRequest
from loraplex.platform.upload_files import ADAPTER_FILES, GZIP_TYPE, TAR_TYPE, check_files

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELD_BYTES = 1024


class UploadForm:
    """A form that is being received; call `feed` with its bytes, then `finish`. Both block."""

    def __init__(self, content_type: str, folder: Path, fields: tuple[str, ...]) -> None:
        """Files are written into `folder`; `fields` are the names of those that are no files.

        Raises:
            InvalidRequest: the content is no form.
        """
        self._folder = folder
        self._names = fields
        self._values: dict[str, bytes] = {}
        self._parts: set[str] = set()
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._disposition = b""
        self._part = ""
        self._file: IO[bytes] | None = None
        self._whole = False
        try:
            self._parser = MultipartParser(_boundary(content_type), self._callbacks())
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes. Raises InvalidRequest, and OSError where they cannot be written."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def finish(self) -> Mapping[str, str]:
        """The fields, once all is there. Raises InvalidRequest naming what is missing."""
        if not self._whole:
            raise _malformed("it ends in the middle")
        check_files(self._parts)
        return {name: _text(name, value) for name, value in self._values.items()}

    def close(self) -> None:
        """Close what is open, however far it came."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open_part,
            "on_part_data": lambda data, start, end: self._add_data(data[start:end]),
            "on_part_end": self.close,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._disposition = b""

    def _add_header(self, side: int, data: bytes) -> None:
        self._header[side].extend(data)  # the parser bounds how long

    def _end_header(self) -> None:
        name, value = (bytes(side) for side in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() == b"content-disposition":
            self._disposition = value

    def _open_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._part = options.get(b"name", b"").decode(errors="replace")
        if self._part not in (*self._names, *ADAPTER_FILES):
            raise InvalidRequest(
                f"The form has a part {self._part[:40]!r}; it takes "
                f"{', '.join((*self._names, *ADAPTER_FILES))}.",
                self._part[:40] or None,
                "unknown_parameter",
            )
        if self._part in self._parts:
            raise InvalidRequest(f"The form has {self._part} twice.", self._part)
        self._parts.add(self._part)
        if self._part in ADAPTER_FILES:
            # The name is one of ours, whatever file name the client gave.
            self._file = (self._folder / self._part).open("xb")
        else:
            self._values[self._part] = b""

    def _add_data(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
            return
        self._values[self._part] += data
        if len(self._values[self._part]) > MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"{self._part} is longer than {MAX_FIELD_BYTES} bytes.", self._part
            )

    def _end(self) -> None:
        self._whole = True


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise InvalidRequest(
            "An adapter is uploaded as multipart/form-data with a boundary, or as one archive with "
            f"the Content-Type {TAR_TYPE} or {GZIP_TYPE}.",
            "content-type",
            "invalid_form",
        )
    return options[b"boundary"]


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not UTF-8.", name) from None


def _malformed(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The form cannot be read: {reason}.", None, "invalid_form")
