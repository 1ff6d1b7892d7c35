"""How requests name adapters: `tenant/adapter`, `tenant/adapter@3`, `tenant/adapter:prod`."""

import re
from dataclasses import dataclass

from loraplex.adapters.registry.errors import ModelNotFound
from loraplex.tenants.errors import NameInvalid
from loraplex.tenants.ids import SLUG, check_slug

_MODEL = re.compile(rf"({SLUG})/({SLUG})(?:@([1-9][0-9]{{0,8}})|:({SLUG}))?")
RESERVED = frozenset({"audit", "import", "uploads"})
"""What stands in the API's paths where an adapter's name could stand."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A name that may mean a version of an adapter."""

    tenant: str
    adapter: str
    version: int | None
    alias: str | None
    """Without `version` and `alias` it means the newest version."""


def parse(model: str) -> ModelName | None:
    """Return the parts of a model's name; None for a text that can name no adapter."""
    match = _MODEL.fullmatch(model)
    if match is None:
        return None
    version = None if match[3] is None else int(match[3])
    return ModelName(match[1], match[2], version, match[4])


def check_adapter_name(name: str) -> None:
    """Raise NameInvalid unless an adapter may have the name."""
    check_slug(name, "The adapter's name")
    if name in RESERVED:
        raise NameInvalid(
            f"The adapter's name {name!r} is a word of the API's own paths; choose another."
        )


def not_found(model: str) -> ModelNotFound:
    """The one answer to whatever cannot be used, for whichever reason."""
    message = f"The model {model[:200]!r} does not exist or you have no access to it."
    return ModelNotFound(message, model)


@dataclass(frozen=True, slots=True)
class AdapterName:
    """One adapter of one tenant, for those who change it."""

    tenant_id: str
    adapter: str
