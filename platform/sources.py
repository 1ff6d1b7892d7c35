"""Where adapters may be imported from, by names that the operator gives: a folder, a bucket, a hub.

A client says the source's name and a path inside it, never a path of this machine.
"""

import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from loraplex.platform.errors import BodyTooLarge, InvalidRequest, SourceUnavailable
from loraplex.platform.import_source import ImportSource
from loraplex.platform.upload_files import ADAPTER_FILES, check_files

_log = logging.getLogger(__name__)

MAX_PATH_CHARS = 300
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +=-]*")
_REPOSITORY = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w-][\w./-]*))?", re.ASCII)
_CHUNK_BYTES = 4 * 1024 * 1024
_TIMEOUT_S = 60.0
_LOGGED_BYTES = 256 * 1024 * 1024


# Of the hub's client, which is not loaded where no hub is asked. A repository that is not for
# everyone is one of the first.
_ABSENT = frozenset({"RepositoryNotFoundError", "RevisionNotFoundError"})


@dataclass(frozen=True, slots=True)
class Found:
    """An adapter's files in a source."""

    path: str
    sizes: Mapping[str, int]
    """Name to length in bytes."""
    revision: str = ""
    """The commit of a hub whose files they are."""


class Source(Protocol):
    """A place with folders of adapters. Both methods block."""

    def find(self, path: str) -> Found:
        """What of an adapter is in a folder.

        Raises InvalidRequest for a path that cannot be, SourceUnavailable.
        """

    def fetch(self, found: Found, into: Path) -> None:
        """Copy these files. Raises BodyTooLarge where one has grown, and as `find`."""


def open_source(source: ImportSource, tenant: str) -> Source:
    """The source of the settings, where a tenant's adapters are. Raises SourceUnavailable if its
    URL names none."""
    url = source.url_of(tenant)
    if url.startswith("file://"):
        return FolderSource(Path(url.removeprefix("file://")))
    if url.startswith("hf://"):
        return HubSource(url.removeprefix("hf://").strip("/"), use_token=source.use_hub_token)
    return RemoteSource(url)


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Folders below one of this machine; links that lead out of it are not followed."""

    root: Path

    def find(self, path: str) -> Found:
        """See `Source.find`."""
        folder = self._folder(path)
        sizes = {}
        for name in ADAPTER_FILES:
            with _reading(path):
                try:
                    status = (folder / name).lstat()
                except FileNotFoundError:
                    continue
            if not stat.S_ISREG(status.st_mode):
                raise InvalidRequest(f"{name} in {path!r} is a link, or no file.", "path")
            sizes[name] = status.st_size
        return Found(path, sizes)

    def fetch(self, found: Found, into: Path) -> None:
        """See `Source.fetch`."""
        folder = self._folder(found.path)
        for name, size in found.sizes.items():
            with _reading(found.path):
                descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
                with os.fdopen(descriptor, "rb") as file:
                    _copy(_chunks_of(file), into / name, size)

    def _folder(self, path: str) -> Path:
        checked_path(path)
        with _reading(path):
            root = self.root.resolve(strict=True)
            folder = (root / path).resolve(strict=True)
        if not folder.is_relative_to(root) or not folder.is_dir():
            raise _absent(path)
        return folder


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """Folders below a URL that fsspec knows, such as `s3://bucket/prefix`."""

    url: str

    def find(self, path: str) -> Found:
        """See `Source.find`."""
        checked_path(path)
        with _reading(path):
            files, root = self._open()
            listed = files.ls(f"{root}/{path}", detail=True, refresh=True)
        names = {PurePosixPath(entry["name"]).name: entry for entry in listed}
        sizes = {
            name: int(names[name]["size"])
            for name in ADAPTER_FILES
            if name in names and names[name]["type"] == "file"
        }
        return Found(path, sizes)

    def fetch(self, found: Found, into: Path) -> None:
        """See `Source.fetch`."""
        for name, size in found.sizes.items():
            with _reading(found.path):
                files, root = self._open()
                with files.open(f"{root}/{found.path}/{name}", "rb") as file:
                    _copy(_chunks_of(file), into / name, size)

    def _open(self) -> tuple[Any, str]:
        """The file system, which has no type, and the root on it."""
        from fsspec.core import url_to_fs  # noqa: PLC0415  drivers are slow to load

        files, root = url_to_fs(self.url)
        return files, root.rstrip("/")


@dataclass(frozen=True, slots=True)
class HubSource:
    """Repositories of a hub of models, `owner/name` or `owner/name@revision`; of one owner alone,
    if the URL names it."""

    owner: str
    use_token: bool = False
    """Ask with this machine's token, if it has one; else as anybody."""

    def find(self, path: str) -> Found:
        """See `Source.find`."""
        repository, revision = self._repository(path)
        with _reading(path):
            from huggingface_hub import HfApi  # noqa: PLC0415  needed by few

            api = HfApi(token=None if self.use_token else False)
            info = api.model_info(repository, revision=revision, files_metadata=True)
        if info.sha is None:
            raise SourceUnavailable("The source does not say which commit it shows.")
        entries = {entry.rfilename: entry.size for entry in info.siblings or ()}
        sizes = {name: entries[name] or 0 for name in ADAPTER_FILES if name in entries}
        return Found(path, sizes, info.sha)

    def fetch(self, found: Found, into: Path) -> None:
        """See `Source.fetch`."""
        repository, _ = self._repository(found.path)
        with _reading(found.path):
            from huggingface_hub import (  # noqa: PLC0415  as above
                get_session,
                get_token,
                hf_hub_url,
            )

            token = get_token() if self.use_token else None
            # As it is, so that what comes is not more than what was counted.
            headers = {"accept-encoding": "identity"}
            if token is not None:
                headers["authorization"] = f"Bearer {token}"
            for name, size in found.sizes.items():
                url = hf_hub_url(repository, name, revision=found.revision)
                with get_session().stream(
                    "GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S
                ) as response:
                    response.raise_for_status()
                    _copy(response.iter_raw(_CHUNK_BYTES), into / name, size)

    def _repository(self, path: str) -> tuple[str, str | None]:
        full = f"{self.owner}/{path}" if self.owner else path
        match = _REPOSITORY.fullmatch(full)
        if match is None or ".." in full:
            raise InvalidRequest(
                f"path must be a repository, OWNER/NAME or OWNER/NAME@REVISION, not {path[:80]!r}.",
                "path",
            )
        return match[1], match[2]


def checked_path(path: str) -> PurePosixPath:
    """A relative path whose every part is a plain name. Raises InvalidRequest for any other."""
    parts = path.split("/")
    if len(path) > MAX_PATH_CHARS or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidRequest(
            "path must be names with slashes between them, such as team/support-v2, inside the "
            f"source; {path[:80]!r} is not.",
            "path",
        )
    return PurePosixPath(path)


def check_found(found: Found, max_bytes: int) -> None:
    """Refuse a folder before anything of it is fetched. Raises InvalidRequest, BodyTooLarge."""
    if not found.sizes:
        raise _absent(found.path)
    check_files(found.sizes.keys())
    if sum(found.sizes.values()) > max_bytes:
        raise BodyTooLarge(max_bytes)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Tell what a source raises in our own words, and its own words to the operator."""
    try:
        yield
    except (InvalidRequest, BodyTooLarge):
        raise
    except FileNotFoundError:
        raise _absent(path) from None
    except ImportError as error:
        raise SourceUnavailable(f"The source needs a package that is missing: {error}.") from error
    except Exception as error:
        if _ABSENT & {kind.__name__ for kind in type(error).__mro__}:
            raise _absent(path) from None
        _log.warning("a source of adapters cannot be read: %s", error)
        raise SourceUnavailable(
            f"The source cannot be read now ({type(error).__name__}); the operator's log says why."
        ) from error


def _chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _copy(chunks: Iterable[bytes], target: Path, size: int) -> None:
    num_bytes = 0
    with target.open("xb") as file:
        for chunk in chunks:
            num_bytes += len(chunk)
            if num_bytes > size:
                raise BodyTooLarge(size)
            file.write(chunk)
            if num_bytes % _LOGGED_BYTES < len(chunk) and size > _LOGGED_BYTES:
                _log.info("fetched %d of %d bytes of %s", num_bytes, size, target.name)


def _absent(path: str) -> InvalidRequest:
    return InvalidRequest(f"The source has no adapter at {path[:80]!r}.", "path", "path_not_found")
