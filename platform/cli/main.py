"""`loraplex`: the command line. Heavy imports wait until a command needs them."""

from typing import Annotated

import typer

from loraplex.platform.cli import (
    adapter,
    admin_key,
    audit,
    backup,
    bench,
    billing,
    budget,
    key,
    limit,
    migrate,
    person,
    price,
    project,
    quota,
    retention,
    serving,
    simulate,
    tenant,
    usage,
)

app = typer.Typer(
    name="loraplex",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serving.serve)
app.command()(serving.gateway)
app.command()(serving.worker)
app.command()(migrate.migrate)
app.command()(backup.backup)
app.command()(backup.restore)
app.command()(simulate.simulate)
app.add_typer(tenant.app, name="tenant")
app.add_typer(project.app, name="project")
app.add_typer(key.app, name="key")
app.add_typer(limit.app, name="limit")
app.add_typer(budget.app, name="budget")
app.add_typer(adapter.app, name="adapter")
app.add_typer(usage.app, name="usage")
app.add_typer(price.app, name="price")
app.add_typer(billing.app, name="billing")
app.add_typer(admin_key.app, name="admin-key")
app.add_typer(person.app, name="person")
app.add_typer(retention.app, name="retention")
app.add_typer(audit.app, name="audit")
app.add_typer(quota.app, name="quota")
app.add_typer(bench.app, name="bench")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("loraplex"))


def _version_and_exit(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def loraplex(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version_and_exit, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Multi-tenant LoRA serving: one base model, thousands of tenants' adapters, one batch.

    Start with `loraplex serve`: it runs everything on this machine with a demo model, and prints
    an address, a key per tenant and a request to try.
    """


def main() -> None:
    """Entry point of the `loraplex` command."""
    app()


if __name__ == "__main__":
    main()
