"""What commands on adapters are about, by the names that requests use; and how it is printed."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from loraplex.platform.cli.context import CommandContext, CommandFailed

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from loraplex.adapters.registry.aliases import Alias
    from loraplex.adapters.registry.names import AdapterName, ModelName
    from loraplex.adapters.registry.registry import PublishedVersion
    from loraplex.tenants.audit import Act

T = TypeVar("T")
Change = Callable[["AsyncSession", "Act", "AdapterName"], Awaitable[T]]
"""What a command does to one adapter, in a transaction that is told to the audit log."""

ADAPTER, VERSION, ALIAS = "TENANT/NAME", "TENANT/NAME@VERSION", "TENANT/NAME:ALIAS"


def target_of(text: str, *forms: str) -> "ModelName":
    """Read a name that has one of these forms. Raises BadParameter."""
    from loraplex.adapters.registry.names import parse

    name = parse(text)
    if name is not None:
        form = ALIAS if name.alias is not None else ADAPTER if name.version is None else VERSION
        if form in forms:
            return name
    raise typer.BadParameter(f"{text!r} is not of the form {' or '.join(forms)}.")


def version_of(text: str) -> int:
    """Read `@3` or `3`. Raises BadParameter."""
    number = text.removeprefix("@")
    if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 9 and int(number)):
        raise typer.BadParameter(f"{text!r} is no version, such as @3.")
    return int(number)


@contextmanager
def naming_absent(tenant: str) -> Iterator[None]:
    """Say what a tenant has not as whoever sees all of it is told: by its kind and whole name."""
    from loraplex.adapters.registry.errors import ModelNotFound

    try:
        yield
    except ModelNotFound as error:
        model = error.model.removeprefix(f"{tenant}/")
        of_version = "version" if "@" in model else "adapter"
        kind = "alias" if ":" in model else of_version
        raise CommandFailed(f"there is no {kind} {tenant}/{model}") from None


async def changed(context: CommandContext, target: "ModelName", change: "Change[T]") -> T:
    """Make a change to the adapter that `target` names. Raises TenantNotFound,
    RegistryError, CommandFailed for what is not there."""
    from loraplex.adapters.registry.names import AdapterName
    from loraplex.tenants import audit, directory

    async with context.database.session() as session:
        owner = await directory.get_by_name(session, target.tenant)
        act = audit.Act(audit.CLI, context.now)
        with naming_absent(target.tenant):
            return await change(session, act, AdapterName(owner.id, target.adapter))


def row_of(version: "PublishedVersion") -> dict[str, Any]:
    """A version as one line of JSON."""
    fields = asdict(version)
    standing: dict[str, Any] = fields.pop("standing")
    return fields | standing


def alias_row_of(alias: "Alias") -> dict[str, Any]:
    """An alias as one line of JSON."""
    return {"model": alias.model} | asdict(alias)


def described(alias: "Alias") -> str:
    """An alias in a line for people."""
    text = f"{alias.model} means {alias.adapter}@{alias.version}"
    if alias.canary is not None:
        canary = alias.canary
        text += f"; {canary.percent} % of requests run on {alias.adapter}@{canary.version}"
    return f"{text}."
