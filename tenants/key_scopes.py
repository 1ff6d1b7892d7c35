"""What a key may do, on which models and from where; and that no child exceeds its parent.

A key is bounded by its role, by the project that it belongs to, and by whoever makes or changes it.
What a key may in effect is found anew for each request, so narrowing a project narrows its keys.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, get_args

from loraplex.tenants.audit import Act
from loraplex.tenants.errors import ExceedsParent, ValueRefused
from loraplex.tenants.ids import SLUG
from loraplex.tenants.roles import ALL, TENANT_GRANTS, Permission, Permissions, TenantRole

Network = IPv4Network | IPv6Network
Models = tuple[str, ...] | None
"""Names of models that may be called; None allows all."""

MAX_ENTRIES = 100
"""Of each list of a key or project."""
MAX_MODEL_CHARS = 200
_ALIAS = re.compile(rf"{SLUG}/{SLUG}:.*")


@dataclass(frozen=True, slots=True)
class KeyScopes:
    """What a key may; None narrows nothing."""

    role: TenantRole = "developer"
    permissions: tuple[Permission, ...] | None = None
    """Of what its role may."""
    models: Models = None
    """Of those of its project."""
    addresses: tuple[Network, ...] | None = None
    """That requests may come from."""

    @property
    def granted(self) -> Permissions:
        """What it may do."""
        of_role = TENANT_GRANTS[self.role]
        return of_role if self.permissions is None else of_role & frozenset(self.permissions)


@dataclass(frozen=True, slots=True)
class Grantor:
    """Who gives keys and rights, and the bounds of what that one can give."""

    act: Act
    permissions: Permissions
    models: Models = None
    addresses: tuple[Network, ...] | None = None
    expires_at: datetime | None = None
    key_id: str | None = None
    """The API key that it acts by; None for others."""


def of_platform(act: Act) -> Grantor:
    """Whoever may make keys in every tenant: bounded by what there is in a tenant."""
    return Grantor(act, TENANT_GRANTS["tenant_admin"])


def of_person(act: Act, platform: Permissions, inside: Permissions) -> Grantor:
    """Somebody signed in, with roles on the platform and in the tenant, who can give what either
    lets them give: whoever makes keys in every tenant can in this one, whatever role they have in
    it besides."""
    everywhere = of_platform(act).permissions
    return Grantor(
        act, inside | (everywhere if "keys.write" in platform else everywhere & platform)
    )


def scopes_from(fields: Mapping[str, Any], base: KeyScopes = KeyScopes()) -> KeyScopes:
    """Return scopes with those fields replaced that are named, from lists of texts; `check_scopes`
    checks them.

    Raises:
        ValueRefused: an address is no network.
    """
    read: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    if read.get("addresses") is not None:
        read["addresses"] = networks_of(read["addresses"])
    return replace(base, **read)


def check_scopes(scopes: KeyScopes) -> None:
    """Check a key's scopes by themselves.

    Raises:
        ValueRefused: unknown role or permission, too many entries, a model's name that can be none.
        ExceedsParent: the role does not have a permission.
    """
    if scopes.role not in get_args(TenantRole):
        known = ", ".join(get_args(TenantRole))
        raise ValueRefused(f"role: {scopes.role[:40]!r} is none of {known}.", "role")
    for permission in scopes.permissions or ():
        if permission not in ALL:
            raise ValueRefused(
                f"permissions: there is no permission {permission[:40]!r}.", "permissions"
            )
    check_within("permissions", scopes.permissions or (), TENANT_GRANTS[scopes.role], "its role")
    check_models(scopes.models)
    for field in ("permissions", "addresses"):
        _check_length(field, getattr(scopes, field))


def check_models(models: Models) -> None:
    """Check a list of models.

    Raises:
        ValueRefused: it is too long, or has an entry that can name no model, or an alias.
    """
    _check_length("models", models)
    for model in models or ():
        if not 1 <= len(model) <= MAX_MODEL_CHARS or not model.isprintable():
            raise ValueRefused(
                f"models: {model[:60]!r} is no name of 1 to {MAX_MODEL_CHARS} characters.", "models"
            )
        if _ALIAS.fullmatch(model):
            raise ValueRefused(
                f"models: {model[:60]!r} is an alias, which may come to mean another version; "
                f"name the adapter, {model.partition(':')[0]}, or a version of it, such as "
                f"{model.partition(':')[0]}@1.",
                "models",
            )


def check_child(
    grantor: Grantor, scopes: KeyScopes, expires_at: datetime | None, project_models: Models
) -> None:
    """Check that a key exceeds neither its project nor who gives it.

    Raises:
        ExceedsParent: it does; the message names the bound.
    """
    check_models_within(scopes.models, project_models, "the project")
    effective = project_models if scopes.models is None else scopes.models
    check_models_within(effective, grantor.models, "your key", nothing_is_all=True)
    check_within("permissions", scopes.granted, grantor.permissions, "your key")
    _check_addresses(scopes.addresses, grantor.addresses)
    if grantor.expires_at is not None and (expires_at is None or expires_at > grantor.expires_at):
        raise ExceedsParent(
            f"expires_at: your key expires at {grantor.expires_at.isoformat()}, and what it makes "
            "expires no later.",
            "expires_at",
        )


def check_models_within(
    child: Models, parent: Models, whose: str, *, nothing_is_all: bool = False
) -> None:
    """Check that the child allows no model that the parent does not. A child without a list takes
    its parent's, unless nothing means all.

    Raises:
        ExceedsParent: it does.
    """
    if parent is None or (child is None and not nothing_is_all):
        return
    among = ", ".join(parent) or "none"
    if child is None:
        raise ExceedsParent(f"models: {whose} may call only {among}; name some of them.", "models")
    for model in child:
        if not allows(parent, model):
            raise ExceedsParent(f"models: {whose} may not call {model}, only {among}.", "models")


def allows(models: Models, name: str) -> bool:
    """True if a list allows a model by its resolved name, `tenant/adapter@3` or the base model's:
    an entry without a version allows all of them."""
    return models is None or name in models or name.partition("@")[0] in models


def address_allowed(networks: tuple[Network, ...] | None, address: str | None) -> bool:
    """True if a request may come from the address."""
    if networks is None:
        return True
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks)


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read networks such as `10.0.0.0/8`, `2001:db8::/32` or a single address. One of IPv4
    addresses that are mapped into IPv6 is read as what it means, since requests are (RFC 4291,
    2.5.5.2).

    Raises:
        ValueRefused: a text is none, or has bits behind its prefix.
    """
    networks = []
    for text in texts:
        try:
            networks.append(_unmapped(ip_network(text)))
        except ValueError:
            raise ValueRefused(
                f"addresses: {text[:60]!r} is no network such as 10.0.0.0/8 or 2001:db8::/32; "
                "bits behind the prefix must be 0.",
                "addresses",
            ) from None
    return tuple(networks)


def _unmapped(network: Network) -> Network:
    first, num_mapped_bits = network.network_address, network.prefixlen - 96
    if isinstance(first, IPv6Address) and first.ipv4_mapped is not None and num_mapped_bits >= 0:
        return IPv4Network((first.ipv4_mapped, num_mapped_bits))
    return network


def stored(values: Iterable[object] | None) -> str | None:
    """A list as a column holds it."""
    return None if values is None else json.dumps([str(value) for value in values])


def read_list(text: str | None) -> tuple[str, ...] | None:
    """A list from its column."""
    return None if text is None else tuple(json.loads(text))


def _check_length(field: str, values: tuple[object, ...] | None) -> None:
    if values is not None and len(values) > MAX_ENTRIES:
        raise ValueRefused(
            f"{field} has {len(values)} entries; at most {MAX_ENTRIES} are possible.", field
        )


def check_within(field: str, child: Iterable[Permission], parent: Permissions, whose: str) -> None:
    """Check that what a child may is among what its parent may.

    Raises:
        ExceedsParent: it is not.
    """
    beyond = sorted(frozenset(child) - parent)
    if beyond:
        among = ", ".join(sorted(parent)) or "nothing"
        raise ExceedsParent(f"{field}: {whose} does not have {beyond[0]}, only {among}.", field)


def _check_addresses(child: tuple[Network, ...] | None, parent: tuple[Network, ...] | None) -> None:
    if parent is None:
        return
    among = ", ".join(str(network) for network in parent) or "none"
    if child is None:
        raise ExceedsParent(f"addresses: your key is for {among}; name some.", "addresses")
    for network in child:
        if not any(_inside(network, wide) for wide in parent):
            raise ExceedsParent(
                f"addresses: {network} is not inside of your key's, {among}.", "addresses"
            )


def _inside(network: Network, wide: Network) -> bool:
    if isinstance(network, IPv4Network) and isinstance(wide, IPv4Network):
        return network.subnet_of(wide)
    if isinstance(network, IPv6Network) and isinstance(wide, IPv6Network):
        return network.subnet_of(wide)
    return False
