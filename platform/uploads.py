"""Adapters that come over the network: received, checked, stored, published. No HTTP here."""

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from loraplex.adapters.errors import CheckpointInvalid, Problem
from loraplex.adapters.registry import registry, storage_use, uploads
from loraplex.adapters.registry.names import check_adapter_name
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.uploads import NewUpload
from loraplex.platform.adapter_checks import CheckedAdapter, check_adapter
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.receiving import nicely, on_disk, received
from loraplex.platform.self_tests import tested
from loraplex.platform.services import Resources
from loraplex.tenants import audit, directory
from loraplex.tenants.audit import Act, Actor
from loraplex.tenants.errors import NameInvalid
from loraplex.tenants.ids import new_id

MAX_TOLD_PROBLEMS = 20
"""Of a refused adapter, in the audit log."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An upload that is noted already, in `validating`."""

    id: str
    retry_as: str = "cancelled"
    """Its status if it cannot be checked now."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """What files of it were announced to have, in hexadecimal."""


async def receive(
    resources: Resources,
    tenant_id: str,
    content_type: str,
    chunks: AsyncIterator[bytes],
    actor: Actor = audit.PLATFORM,
    name: str | None = None,
) -> PublishedVersion:
    """Take an upload for a tenant; when this returns, the adapter can be called. An archive needs a
    `name`; a form has it as a field, too.

    The same bytes again are the same version. Raises InvalidRequest, CheckpointInvalid with every
    problem, VersionConflict, StorageUnavailable, TooManyUploads, EngineUnavailable before a worker
    has told its model. Whatever happens, nothing half-received stays.
    """
    if name is not None:
        check_name(name)
    with resources.upload_slots.taken(tenant_id):
        async with received(resources.settings, content_type, chunks) as upload:
            asked = upload.fields.get("name", name)
            if asked is None:
                raise InvalidRequest("name is missing.", "name", "missing_required_parameter")
            if name not in {None, asked}:
                raise InvalidRequest("The form and the query have different names.", "name")
            return await publish(resources, tenant_id, asked, upload.folder, actor)


async def publish(
    resources: Resources,
    tenant_id: str,
    name: str,
    folder: Path,
    actor: Actor = audit.PLATFORM,
    begun: Begun | None = None,
) -> PublishedVersion:
    """Check a checkpoint's folder against the served model, store it, make it the newest version.
    What becomes of it is noted as an upload, which `begun` is, or a new one.

    Raises InvalidRequest for its name, CheckpointInvalid, also if its self-test fails,
    VersionConflict, AdapterTooLarge,
    StorageLimitReached, EngineUnavailable, StorageUnavailable.
    """
    check_name(name)
    begun = begun or await _begin(resources, tenant_id, name, folder)
    try:
        try:
            async with resources.checks:
                await _check_announced(folder, begun.sha256)
                checked = await check_adapter(resources, tenant_id, folder)
            return await _store_and_publish(resources, actor, tenant_id, name, checked, begun)
        except CheckpointInvalid as error:
            act = Act(actor, resources.now())
            await _tell_rejection(resources, act, tenant_id, name, begun, error)
            raise
    except BaseException:  # changes none that is told as rejected, but one whose telling failed
        async with resources.database.session() as session:
            await uploads.end(session, begun.id, begun.retry_as, resources.now())
        raise


def check_name(name: str) -> None:
    """Raise InvalidRequest unless an adapter may have the name."""
    try:
        check_adapter_name(name)
    except NameInvalid as error:
        hint = " Give it without the tenant." if "/" in name else ""
        raise InvalidRequest(f"{error}{hint}", "name") from None


async def _check_announced(folder: Path, sha256: Mapping[str, str]) -> None:
    """Raise CheckpointInvalid if a file is not the one that was announced."""

    def others() -> Iterator[Problem]:
        for name, announced in sha256.items():
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != announced:
                reason = (
                    f"{announced} was announced as its SHA-256; it was sent from different files, "
                    "or changed on its way: begin another upload"
                )
                yield Problem(name, found, reason)

    if problems := await nicely(lambda: tuple(others())):
        raise CheckpointInvalid(problems)


async def _begin(resources: Resources, tenant_id: str, name: str, folder: Path) -> Begun:
    files = await on_disk(lambda: {file.name: file.stat().st_size for file in folder.iterdir()})
    now = resources.now()
    begun = Begun(new_id("upl", now, resources.entropy))
    async with resources.database.session() as session:
        new = NewUpload(begun.id, name, files)
        await uploads.add(session, tenant_id, new, "validating", now)
    return begun


async def _store_and_publish(
    resources: Resources,
    actor: Actor,
    tenant_id: str,
    name: str,
    checked: CheckedAdapter,
    begun: Begun,
) -> PublishedVersion:
    checkpoint, kept = checked.checkpoint, checked.profile.kept()
    publication = checked.publication(name, resources.engine.model.name)

    async with resources.database.reader() as session:
        await storage_use.check_limits(session, tenant_id, publication)
    digest = checkpoint.digest
    async with resources.adapter_bytes.kept(
        digest,
        lambda: resources.store.put(checkpoint, kept),
        lambda: resources.engine.drop(tenant_id, digest),  # which may have tested it
    ) as claim:
        report = await tested(resources, tenant_id, digest)
        publication = replace(publication, self_test=report)
        async with resources.database.session() as session:
            # The time of the transaction, not of the upload: audit logs are read in its order.
            now = resources.now()
            version = await registry.publish(session, tenant_id, publication, now, actor, claim)
            await uploads.finish(session, tenant_id, begun.id, version, now)
    return version


async def _tell_rejection(
    resources: Resources,
    act: Act,
    tenant_id: str,
    name: str,
    begun: Begun,
    error: CheckpointInvalid,
) -> None:
    async with resources.database.session() as session:
        await uploads.end(session, begun.id, "rejected", act.at, error.problems)
        tenant = await directory.get(session, tenant_id)
        detail = {"problems": error.problems[:MAX_TOLD_PROBLEMS], "upload": begun.id}
        subject = f"{tenant.name}/{name}"
        await audit.append(session, act, tenant_id, "adapter.reject", subject, detail)
