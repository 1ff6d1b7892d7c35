"""`loraplex tenant delete`: a tenant with all that is its own."""

from typing import Annotated

import typer

from loraplex.platform.cli.adapter_life import finish_deletions
from loraplex.platform.cli.context import (
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    TenantName,
    run,
)


def delete(
    name: TenantName,
    confirm: Annotated[str, typer.Option(metavar="TENANT", help="The same name once more.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete a tenant: its keys, adapters, limits and people. Requests that run are broken off.

    What it used stays in the ledger, and what was done in the audit log, under the tenant's id.
    """

    async def work(context: CommandContext) -> bool:
        from loraplex.adapters.registry import tenant_deletion
        from loraplex.tenants import audit, directory
        from loraplex.tenants.audit import Act

        if confirm != name:
            raise CommandFailed(f"--confirm names {confirm!r}, not {name!r}; nothing was deleted")
        async with context.database.session() as session:
            tenant = await directory.get_by_name(session, name)
            await tenant_deletion.begin(session, Act(audit.CLI, context.now), tenant.id)
        await finish_deletions(context)
        async with context.database.session() as session:
            return await tenant_deletion.advance(session, tenant.id, context.now)

    if run(work, data_dir, database_url):
        typer.echo(f"Deleted tenant {name}.")
    else:
        typer.echo(f"Tenant {name} is being deleted: its keys are refused, and gateways finish it.")
