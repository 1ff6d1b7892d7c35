"""The adapters' store that a URL names."""

from pathlib import Path

from loraplex.adapters.storage import AdapterStore, Store


class StoreUrlInvalid(ValueError):
    """No store is reached by such a URL, or its driver is not installed; the message says which."""


def open_store(url: str | None, data_dir: Path, cache_bytes: int) -> Store:
    """Open the store in a folder (a path, `file://…`, or `adapters` of the data directory for
    None), or the remote one that a URL such as `s3://bucket/prefix` names, read through
    `adapter-cache` of the data directory.

    Raises:
        StoreUrlInvalid: there is no such kind of store.
    """
    if url is None:
        return AdapterStore(data_dir / "adapters")
    if "://" not in url or url.startswith("file://"):
        return AdapterStore(Path(url.removeprefix("file://")))
    # Drivers are slow to load, and needed by few.
    from fsspec.core import url_to_fs  # noqa: PLC0415  as the comment says

    from loraplex.adapters.remote_storage import RemoteStore  # noqa: PLC0415  as above

    try:
        # Others write there, too: what was listed a while ago says nothing.
        files, root = url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        hint = "; install loraplex[s3]" if url.startswith("s3://") else ""
        raise StoreUrlInvalid(f"{shown_url(url)}: {error}{hint}") from error
    return RemoteStore(files, root, data_dir / "adapter-cache", cache_bytes)


def shown_url(url: str) -> str:
    """A store's URL for messages: without what may hold a key, as in `s3://key:secret@bucket`."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://…" if separator and ("@" in rest or "?" in rest) else url
