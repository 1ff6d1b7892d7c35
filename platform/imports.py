"""Adapters that are fetched by the gateway, from sources that its settings name."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loraplex.adapters.registry import uploads
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.uploads import NewUpload
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.import_source import ImportSource
from loraplex.platform.receiving import on_disk, uploads_dir
from loraplex.platform.services import Resources
from loraplex.platform.sources import check_found, open_source
from loraplex.platform.uploads import Begun, check_name, publish
from loraplex.tenants import audit, directory
from loraplex.tenants.audit import Actor
from loraplex.tenants.ids import new_id


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an adapter lies."""

    source: str
    """A name of the settings."""
    path: str
    """Inside it."""


async def import_adapter(
    resources: Resources,
    tenant_id: str,
    name: str,
    reference: Reference,
    actor: Actor = audit.PLATFORM,
    *,
    as_operator: bool = False,
) -> PublishedVersion:
    """Fetch an adapter's files from a source, check them, publish them as the newest version. An
    operator may use every source, a tenant those that are open to it.

    Raises InvalidRequest, BodyTooLarge before anything is fetched, SourceUnavailable,
    TooManyUploads, and as `publish` does.
    """
    check_name(name)
    source, path = reference.source, reference.path
    async with resources.database.reader() as session:
        tenant = (await directory.get(session, tenant_id)).name
    opened = open_source(_allowed(resources, source, None if as_operator else tenant), tenant)
    with resources.upload_slots.taken(tenant_id):
        found = await on_disk(lambda: opened.find(path))
        check_found(found, resources.settings.max_upload_bytes)
        now = resources.now()
        new = NewUpload(
            new_id("upl", now, resources.entropy), name, found.sizes, f"{source}:{path}"[:400]
        )
        folder = uploads_dir(resources.settings) / new.id
        async with resources.database.session() as session:
            await uploads.add(session, tenant_id, new, "validating", now)
        try:
            await _fetch(resources, new.id, lambda: opened.fetch(found, folder), folder)
            return await publish(resources, tenant_id, name, folder, actor, Begun(new.id))
        finally:
            await on_disk(lambda: shutil.rmtree(folder, ignore_errors=True))


async def _fetch(
    resources: Resources, upload_id: str, fetch: Callable[[], None], folder: Path
) -> None:
    """Fetch into a new folder; an upload for which that fails is over."""
    try:
        await on_disk(lambda: folder.mkdir(parents=True))
        await on_disk(fetch)
    except BaseException:
        async with resources.database.session() as session:
            await uploads.end(session, upload_id, "cancelled", resources.now())
        raise


def _allowed(resources: Resources, name: str, tenant: str | None) -> ImportSource:
    """A source, if it is open to the tenant, or to the operator for None; what is not is to a
    tenant as if it were not there."""
    settled = resources.settings.adapter_sources
    sources = {n: s for n, s in settled.items() if tenant is None or s.is_open_to(tenant)}
    if name not in sources:
        known = ", ".join(sorted(sources)) or "none is set up"
        raise InvalidRequest(f"There is no source {name[:60]!r}; known: {known}.", "source")
    return sources[name]
