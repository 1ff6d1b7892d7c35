"""`loraplex adapter`: the adapters of a tenant, their names and their life."""

import typer

from loraplex.platform.cli import (
    adapter_alias,
    adapter_check,
    adapter_import,
    adapter_life,
    adapter_push,
    adapter_show,
    adapter_top,
    adapter_upload,
    adapter_warm,
)

app = typer.Typer(help="Adapters of a tenant.")
app.command()(adapter_check.check)
app.command()(adapter_push.push)
app.command()(adapter_upload.upload)
app.command("import")(adapter_import.import_)
app.command("list")(adapter_show.list_)
app.command()(adapter_show.show)
app.command()(adapter_top.top)
app.command()(adapter_warm.warm)
app.command()(adapter_alias.alias)
app.command()(adapter_alias.rollback)
app.command()(adapter_alias.canary)
app.command()(adapter_life.retire)
app.command()(adapter_life.restore)
app.command()(adapter_life.pin)
app.command()(adapter_life.unpin)
app.command()(adapter_life.delete)
