"""`loraplex audit`: what was done, and by whom."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import counted, print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.audit import AuditRecord
    from loraplex.tenants.audit_chain import ChainReport

NUM_DIGITS = 12
"""Of a digest, for people."""

app = typer.Typer(help="What was done, and by whom.")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="Of this one alone.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Such as adapter.alias.point, or a beginning: adapter.alias.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Such as acme/support@3, or an adapter with all it has.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="From this time on, in UTC.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 100,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List events, newest first."""

    async def work(context: CommandContext) -> "list[AuditRecord]":
        from datetime import UTC

        from loraplex.tenants import directory
        from loraplex.tenants.audit import AuditFilter, find_events

        start = None if since is None else since.replace(tzinfo=UTC)
        async with context.database.reader() as session:
            owner = None if tenant is None else await directory.get_by_name(session, tenant)
            owner_id = None if owner is None else owner.id
            wanted = AuditFilter(owner_id, action, subject, start)
            return await find_events(session, wanted, limit)

    events = run(work, data_dir, database_url)
    if as_json:
        print_json(asdict(event) for event in events)
        return
    print_table(
        ("AT", "ACTOR", "ACTION", "SUBJECT", "DETAIL"),
        ((e.at, e.actor, e.action, e.subject, _told(e.action, e.detail)) for e in events),
        empty="Nothing was done yet.",
    )


@app.command()
def verify(
    head: Annotated[
        str | None,
        typer.Option(help="A hash that was the newest once, kept elsewhere: it must be there."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Read the whole log and see that no event was changed, removed or put in; exit 1 if so."""

    async def work(context: CommandContext) -> "ChainReport":
        from loraplex.tenants import audit_chain

        async with context.database.snapshot() as session:
            return await audit_chain.verify(session, head)

    report = run(work, data_dir, database_url)
    if as_json:
        print_json([asdict(report)])
    elif report.broken_id is not None:
        typer.echo(f"The audit log is broken at event {report.broken_id}.", err=True)
    elif not report.expected_found:
        typer.echo("The audit log does not have the event of that hash any more.", err=True)
    else:
        typer.echo(f"The audit log is whole: {counted(report.num_events, 'event')}.")
        typer.echo(f"Its head is {report.head}.")
    if not report.is_whole:
        raise typer.Exit(1)


def _told(action: str, detail: dict[str, object]) -> str:
    absent = "default" if action == "tenant.limits" else "absent"
    return _fields(detail, absent)


def _fields(detail: dict[str, object], absent: str) -> str:
    rest, told = dict(detail), []
    if {"from", "to"} <= rest.keys():
        before, after = (_value(rest.pop(end), "", absent) for end in ("from", "to"))
        told.append(f"{before} → {after}")
    told += [
        f"{name} ({_fields(value, absent)})"
        if isinstance(value, dict)
        else f"{name}={_value(value, name, absent)}"
        for name, value in rest.items()
        if name != "problems"
    ]
    if isinstance(problems := rest.get("problems"), list):
        told.append(counted(len(problems), "problem"))
    return " ".join(told)


def _value(value: object, name: str, absent: str) -> str:
    if value is None:
        return absent
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(_value(each, name, absent) for each in value) or "none"
    if isinstance(value, dict):
        return f"({_fields(value, absent)})"
    return _digits_of(str(value)) if name == "digest" else str(value)


def _digits_of(digest: str) -> str:
    """What people need of a digest."""
    return digest.rpartition(":")[2][:NUM_DIGITS]
