"""`loraplex`: the command line. Heavy imports wait until a command needs them."""

import typer

from loraplex.platform.cli import (
    adapter,
    admin_key,
    bench,
    billing,
    key,
    migrate,
    price,
    serving,
    simulate,
    tenant,
    usage,
)

app = typer.Typer(
    name="loraplex",
    help="Multi-tenant LoRA serving: one base model, thousands of tenants' adapters, one batch.\n\n"
    "Start with `loraplex serve`: it runs everything on this machine with a demo model, and prints "
    "an address, a key per tenant and a request to try.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serving.serve)
app.command()(serving.gateway)
app.command()(serving.worker)
app.command()(migrate.migrate)
app.command()(simulate.simulate)
app.add_typer(tenant.app, name="tenant")
app.add_typer(key.app, name="key")
app.add_typer(adapter.app, name="adapter")
app.add_typer(usage.app, name="usage")
app.add_typer(price.app, name="price")
app.add_typer(billing.app, name="billing")
app.add_typer(admin_key.app, name="admin-key")
app.add_typer(bench.app, name="bench")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("loraplex"))


def main() -> None:
    """Entry point of the `loraplex` command."""
    app()


if __name__ == "__main__":
    main()
