"""Which files an adapter's upload is made of."""

from collections.abc import Set
from pathlib import PurePosixPath

from loraplex.adapters.checkpoint import CONFIG_FILE, PICKLES, TENSORS_FILE
from loraplex.adapters.profile_files import PROFILE_FILES
from loraplex.platform.errors import InvalidRequest

REQUIRED_FILES = (CONFIG_FILE, TENSORS_FILE)
ADAPTER_FILES = (*REQUIRED_FILES, *PROFILE_FILES)
"""All that are taken, in whatever way they come."""
TAR_TYPE, GZIP_TYPE = "application/x-tar", "application/gzip"
"""Content types of an archive."""


def check_files(names: Set[str]) -> None:
    """Raise InvalidRequest if one is missing that every adapter has."""
    for name in REQUIRED_FILES:
        if name not in names:
            raise InvalidRequest(f"The file {name} is missing.", name, "missing_required_parameter")


def is_pickle(name: str) -> bool:
    """True for weights of an adapter in a form that is not taken."""
    path = PurePosixPath(name)
    return path.stem.lower() == "adapter_model" and path.suffix.lower() in PICKLES
