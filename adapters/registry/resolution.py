"""What a name means for one tenant, now: an immutable digest, from one indexed query."""

from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import names
from loraplex.adapters.registry.aliases import Alias, list_aliases
from loraplex.adapters.registry.canary import takes_canary
from loraplex.adapters.registry.names import ModelName
from loraplex.adapters.registry.registry import PublishedVersion, published, versions_of
from loraplex.adapters.registry.tables import Adapter, AdapterAlias, AdapterVersion
from loraplex.tenants.tables import Tenant


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a request runs on from first to last token."""

    name: str
    """The base model's name, or `tenant/adapter@version`."""
    digest: str | None
    """None for the base model."""
    version: int | None

    @property
    def adapter(self) -> str | None:
        """The adapter's name within its tenant; None for the base model."""
        return None if self.digest is None else self.name.partition("/")[2].partition("@")[0]


@dataclass(frozen=True, slots=True)
class CallableModel:
    """A name that a tenant can call, and what it means."""

    name: str
    """`tenant/adapter`, or `tenant/adapter:alias`."""
    version: PublishedVersion


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name means for a tenant, as long as nothing of it changes."""

    name: str
    """As an alias is named in full."""
    stable: ResolvedModel | None
    """None where only the canary can be called."""
    canary: ResolvedModel | None = None
    canary_percent: int = 0

    def chosen(self, tenant_id: str, sticky: str | None) -> ResolvedModel:
        """Return what a request runs on; `sticky` decides whether that is an alias's canary
        (`canary.takes_canary`), and None never does.

        Raises:
            ModelNotFound: it cannot be called.
        """
        if (
            self.canary is not None
            and sticky is not None
            and takes_canary(tenant_id, self.name, sticky, self.canary_percent)
        ):
            return self.canary
        if self.stable is None:
            raise names.not_found(self.name)
        return self.stable


async def resolve(
    session: AsyncSession, tenant_id: str, model: str, base_model: str, sticky: str | None = None
) -> ResolvedModel:
    """Return what `model` means for this tenant, now: see `find` and `Meaning.chosen`.

    Raises:
        ModelNotFound: nothing that this tenant may use has the name.
    """
    return (await find(session, tenant_id, model, base_model)).chosen(tenant_id, sticky)


async def find(session: AsyncSession, tenant_id: str, model: str, base_model: str) -> Meaning:
    """Return what `model` means for this tenant: a base model, or versions of an adapter.

    Only ready versions made for the base model that is served, `base_model`, are found.

    Raises:
        ModelNotFound: nothing that this tenant may use has the name.
    """
    if model == base_model:
        return Meaning(model, ResolvedModel(base_model, digest=None, version=None))
    name = names.parse(model)
    if name is None:
        raise names.not_found(model)
    if name.alias is not None:
        return await _aliased(session, tenant_id, name, base_model)
    found = await _version(session, tenant_id, name, base_model)
    if found is None:
        raise names.not_found(model)
    return Meaning(model, _resolved(found))


async def list_models(
    session: AsyncSession, tenant_id: str, base_model: str
) -> list[PublishedVersion]:
    """Return what each name of the tenant resolves to on this base model, by name."""
    newest: dict[str, PublishedVersion] = {}
    for row in await session.execute(_callable(tenant_id, base_model)):
        version = published(*row)
        newest.setdefault(version.model, version)
    return list(newest.values())


async def list_callable(
    session: AsyncSession, tenant_id: str, base_model: str
) -> list[CallableModel]:
    """Return the names and aliases that the tenant can call on this base model, by name."""
    versions = [published(*row) for row in await session.execute(_callable(tenant_id, base_model))]
    by_name = {f"{version.model}@{version.version}": version for version in versions}
    models: dict[str, CallableModel] = {}
    for version in versions:
        models.setdefault(version.model, CallableModel(version.model, version))
    for alias in await list_aliases(session, tenant_id):
        meant = by_name.get(_meant(alias))
        if meant is not None:
            models[alias.model] = CallableModel(alias.model, meant)
    return [models[name] for name in sorted(models)]


def _meant(alias: Alias) -> str:
    return f"{alias.adapter}@{alias.version}"


def _callable(tenant_id: str, base_model: str) -> "Select[str, Adapter, AdapterVersion]":
    return versions_of(tenant_id).where(
        AdapterVersion.base_model == base_model, AdapterVersion.status == "ready"
    )


async def _version(
    session: AsyncSession, tenant_id: str, name: ModelName, base_model: str
) -> PublishedVersion | None:
    query = _callable(tenant_id, base_model).where(
        Tenant.name == name.tenant, Adapter.name == name.adapter
    )
    if name.version is not None:
        query = query.where(AdapterVersion.number == name.version)
    row = (await session.execute(query.limit(1))).one_or_none()
    return None if row is None else published(*row)


async def _aliased(
    session: AsyncSession, tenant_id: str, name: ModelName, base_model: str
) -> Meaning:
    """The alias's version and its canary's, as far as they can be called."""
    query = (
        select(Tenant.name, Adapter, AdapterVersion, AdapterAlias)
        .join(Adapter, Adapter.tenant_id == Tenant.id)
        .join(AdapterAlias, AdapterAlias.adapter_id == Adapter.id)
        .join(
            AdapterVersion,
            AdapterVersion.id.in_([AdapterAlias.version_id, AdapterAlias.canary_version_id]),
        )
        .where(
            Tenant.id == tenant_id,
            Tenant.name == name.tenant,
            Adapter.name == name.adapter,
            AdapterAlias.name == name.alias,
            AdapterVersion.status == "ready",
            AdapterVersion.base_model == base_model,
        )
    )
    found: dict[bool, ResolvedModel] = {}
    percent = 0
    for tenant_name, adapter, version, alias in await session.execute(query):
        resolved = _resolved(published(tenant_name, adapter, version))
        found[version.id == alias.canary_version_id] = resolved
        percent = alias.canary_percent or 0
    model = f"{name.tenant}/{name.adapter}:{name.alias}"
    if not found:
        raise names.not_found(model)
    return Meaning(model, found.get(False), found.get(True), percent)


def _resolved(version: PublishedVersion) -> ResolvedModel:
    return ResolvedModel(f"{version.model}@{version.version}", version.digest, version.version)
