"""Styles, scripts and the icon, each under a name that changes with its content."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

STATIC = Path(__file__).with_name("static")
_TYPES = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, read once."""

    body: bytes
    media_type: str
    version: str


@dataclass(frozen=True, slots=True)
class Assets:
    """All files that pages may name."""

    files: Mapping[str, Asset]

    def url(self, name: str) -> str:
        """Where a page finds it; the address changes with the content."""
        return f"/console/static/{name}?v={self.files[name].version}"


def load_assets(folder: Path = STATIC) -> Assets:
    """Read the files of a folder."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            version = hashlib.sha256(body).hexdigest()[:12]
            files[path.name] = Asset(body, _TYPES[path.suffix], version)
    return Assets(MappingProxyType(files))
