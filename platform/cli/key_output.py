"""What `loraplex key` and `loraplex admin-key` share: an option, and how keys are shown."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.admin_keys import AdminKeyRecord
    from loraplex.tenants.api_keys import KeyRecord
    from loraplex.tenants.key_text import MintedKey

ExpiresInDays = Annotated[int | None, typer.Option(min=1, help="Default: never.")]


def expiry(now: datetime, in_days: int | None) -> datetime | None:
    """When a key that is made now expires; None where it never does."""
    return None if in_days is None else now + timedelta(days=in_days)


def print_minted(minted: "MintedKey", *, as_json: bool, **fields: str) -> None:
    """Show a new key, this once; the fields stand before it in JSON."""
    if as_json:
        print_json([{**fields, "key_id": minted.key_id, "key": minted.text}])
        return
    typer.echo(minted.text)
    typer.echo("This key is shown once and kept nowhere: store it now.", err=True)


def print_keys(
    keys: "Sequence[KeyRecord | AdminKeyRecord]", now: datetime, *, as_json: bool, empty: str
) -> None:
    """List keys; `empty` is what to say where there are none."""
    if as_json:
        print_json(_row(key) | {"status": _status(key, now)} for key in keys)
        return
    print_table(
        ("KEY ID", "LABEL", "ROLE", "PROJECT", "STATUS", "CREATED", "LAST USED", "EXPIRES"),
        (
            (
                key.key_id,
                key.label or "-",
                _row(key)["role"],
                _row(key).get("project"),
                _status(key, now),
                key.created_at,
                key.last_used_at,
                key.expires_at,
            )
            for key in keys
        ),
        empty=empty,
    )


def _row(key: "KeyRecord | AdminKeyRecord") -> dict[str, Any]:
    """A key as one line of JSON, with its scopes beside the rest."""
    fields: dict[str, Any] = asdict(key)
    scopes: dict[str, Any] = fields.pop("scopes", {})
    if scopes.get("addresses") is not None:
        scopes["addresses"] = [str(network) for network in scopes["addresses"]]
    return fields | scopes


def _status(key: "KeyRecord | AdminKeyRecord", now: datetime) -> str:
    """Whether a key is accepted: `active`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "active"
