"""Adapters that are fetched by the gateway, from sources that its settings name."""

import shutil
from dataclasses import dataclass

from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.registry import uploads
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.uploads import NewUpload
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.receiving import on_disk, uploads_dir
from loraplex.platform.services import Resources
from loraplex.platform.sources import Source, check_found, open_source
from loraplex.platform.uploads import Begun, check_name, publish
from loraplex.tenants import audit
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
    actor: str = audit.PLATFORM,
) -> PublishedVersion:
    """Fetch an adapter's files from a source, check them, publish them as the newest version.

    Raises InvalidRequest, BodyTooLarge before anything is fetched, SourceUnavailable,
    TooManyUploads, and as `publish` does.
    """
    check_name(name)
    source, path = reference.source, reference.path
    opened = _source(resources, source)
    with resources.upload_slots.taken(tenant_id):
        sizes = await on_disk(lambda: opened.sizes(path))
        check_found(path, sizes, resources.settings.max_upload_bytes)
        now = resources.now()
        new = NewUpload(
            new_id("upl", now, resources.entropy), name, sizes, f"{source}:{path}"[:400]
        )
        folder = uploads_dir(resources.settings) / new.id
        async with resources.database.session() as session:
            await uploads.add(session, tenant_id, new, "validating", now)
        try:
            await on_disk(lambda: folder.mkdir(parents=True))
            await on_disk(lambda: opened.fetch(path, sizes, folder))
            return await publish(resources, tenant_id, name, folder, actor, Begun(new.id))
        except CheckpointInvalid:
            raise
        except BaseException:
            async with resources.database.session() as session:
                await uploads.end(session, new.id, "cancelled", resources.now())
            raise
        finally:
            await on_disk(lambda: shutil.rmtree(folder, ignore_errors=True))


def _source(resources: Resources, name: str) -> Source:
    sources = resources.settings.adapter_sources
    if name not in sources:
        known = ", ".join(sorted(sources)) or "none is set up"
        raise InvalidRequest(f"There is no source {name[:60]!r}; known: {known}.", "source")
    return open_source(sources[name])
