"""`loraplex person`: people who sign in to the console, and their roles."""

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from loraplex.tenants.audit import Act
    from loraplex.tenants.memberships import Membership
    from loraplex.tenants.people import PersonRecord

app = typer.Typer(help="People who sign in to the console, and their roles.")

Person = Annotated[str, typer.Argument(metavar="EMAIL", help="The person's e-mail address, or id.")]
Role = Annotated[
    str,
    typer.Argument(
        help="On the platform: owner, operator, finance or read_only. "
        "In a tenant: tenant_admin, developer or read_only."
    ),
]
Tenant = Annotated[
    str | None, typer.Option(help="Name of the tenant. Default: the platform's own roles.")
]


@app.command()
def add(
    email: Annotated[str, typer.Argument(help="The person's e-mail address.")],
    name: Annotated[str, typer.Option(help="What pages call the person.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Add a person, who has no role and no password yet."""

    async def work(context: CommandContext) -> "PersonRecord":
        from loraplex.tenants import people

        async with context.database.session() as session:
            return await people.add(session, _act(context), email, name, secrets.token_bytes)

    person = run(work, data_dir, database_url)
    if as_json:
        print_json([_fields(person)])
    else:
        typer.echo(f"Added {person.email} as {person.id}.")


@app.command("list")
def list_(
    tenant: Tenant = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List all people, or those of a tenant."""

    async def work(context: CommandContext) -> "list[PersonRecord]":
        from loraplex.tenants import people

        async with context.database.reader() as session:
            return await people.list_people(session, await _tenant_id(session, tenant))

    found = run(work, data_dir, database_url)
    if as_json:
        print_json(map(_fields, found))
        return
    print_table(
        ("EMAIL", "NAME", "STATUS", "ROLES", "SIGNED IN"),
        (
            (
                person.email,
                person.name or "-",
                person.status,
                ", ".join(_role(one) for one in person.memberships) or "-",
                person.signed_in_at,
            )
            for person in found
        ),
        empty="There are no people; add one with: loraplex person add EMAIL",
    )


@app.command()
def disable(person: Person, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Keep a person out; the person's sessions end at once."""
    _set_status(person, "disabled", data_dir, database_url)
    typer.echo(f"Disabled {person}.")


@app.command()
def enable(person: Person, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Let a person in again who was disabled."""
    _set_status(person, "active", data_dir, database_url)
    typer.echo(f"Enabled {person}.")


@app.command()
def password(
    person: Person,
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read it from standard input instead of asking.")
    ] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Give a person a password of at least 12 characters; the person's sessions end."""
    text = (
        typer.get_text_stream("stdin").readline().rstrip("\r\n")
        if from_stdin
        else typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    )

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import people
        from loraplex.tenants.passwords import Passwords

        hashed = await Passwords().hash(text)
        async with context.database.session() as session:
            found = await people.named(session, person)
            await people.set_password(session, _act(context), found.id, hashed)

    run(work, data_dir, database_url)
    typer.echo(f"{person} signs in with the new password from now on.")


@app.command()
def unlink(person: Person, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Forget by which issuer a person signs in, such as one that moved; sessions end."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import people

        async with context.database.session() as session:
            found = await people.named(session, person)
            await people.unlink(session, _act(context), found.id)

    run(work, data_dir, database_url)
    typer.echo(f"{person} is linked anew at the next sign-in by an issuer.")


@app.command()
def grant(
    person: Person,
    role: Role,
    tenant: Tenant = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Give a person a role, instead of the one that the person had there."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import memberships, people

        async with context.database.session() as session:
            found = await people.named(session, person)
            place = await _tenant_id(session, tenant)
            await memberships.grant(
                session, _act(context), found.id, role, place, secrets.token_bytes
            )

    run(work, data_dir, database_url)
    typer.echo(f"{person} is {role} {_place(tenant)} now.")


@app.command()
def revoke(
    person: Person,
    tenant: Tenant = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Take a person's role on the platform or in a tenant away; the person's sessions end."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import memberships, people

        async with context.database.session() as session:
            found = await people.named(session, person)
            place = await _tenant_id(session, tenant)
            await memberships.revoke(session, _act(context), found.id, place)

    run(work, data_dir, database_url)
    typer.echo(f"{person} has no role {_place(tenant)} any more.")


def _set_status(person: str, status: str, data_dir: DataDir, database_url: DatabaseUrl) -> None:
    async def work(context: CommandContext) -> None:
        from loraplex.tenants import people

        async with context.database.session() as session:
            found = await people.named(session, person)
            await people.set_status(session, _act(context), found.id, status)

    run(work, data_dir, database_url)


def _act(context: CommandContext) -> "Act":
    from loraplex.tenants import audit

    return audit.Act(audit.CLI, context.now)


async def _tenant_id(session: "AsyncSession", tenant: str | None) -> str | None:
    from loraplex.tenants import directory

    return None if tenant is None else (await directory.get_by_name(session, tenant)).id


def _place(tenant: str | None) -> str:
    return "on the platform" if tenant is None else f"in {tenant}"


def _role(membership: "Membership") -> str:
    return membership.role + (f" in {membership.tenant_name}" if membership.tenant_name else "")


def _fields(person: "PersonRecord") -> dict[str, object]:
    return asdict(person)
