"""Adapters that come over the network: received, checked, stored, published. No HTTP here."""

import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import Checkpoint, inspect
from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.registry import registry, storage_use
from loraplex.adapters.registry.errors import RegistryError
from loraplex.adapters.registry.registry import Publication, PublishedVersion
from loraplex.engine.errors import EngineUnavailable
from loraplex.engine.protocol import ModelInfo
from loraplex.platform.adapter_bytes import removal, store_of
from loraplex.platform.base_record import shapes_told
from loraplex.platform.errors import InvalidRequest, StorageUnavailable
from loraplex.platform.services import Resources
from loraplex.platform.settings import Settings
from loraplex.platform.threads import in_thread
from loraplex.platform.upload_form import UploadForm
from loraplex.tenants import audit, directory
from loraplex.tenants.audit import Act
from loraplex.tenants.errors import NameInvalid
from loraplex.tenants.ids import check_slug

T = TypeVar("T")

MAX_TOLD_PROBLEMS = 20
"""Of a refused adapter, in the audit log."""
ABANDONED_S = 86_400.0
"""No upload takes that long: what is older was left by a process that was killed."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A form that was received whole: its files lie in a folder that goes when it is left."""

    fields: Mapping[str, str]
    folder: Path


async def receive(
    resources: Resources,
    tenant_id: str,
    content_type: str,
    chunks: AsyncIterator[bytes],
    actor: str = audit.PLATFORM,
) -> PublishedVersion:
    """Take an upload for a tenant; when this returns, the adapter can be called.

    The same bytes again are the same version. Raises InvalidRequest, CheckpointInvalid with every
    problem, VersionConflict, StorageUnavailable, EngineUnavailable before a worker has told its
    model. Whatever happens, nothing half-received stays.
    """
    async with received(resources.settings, content_type, chunks) as upload:
        name = upload.fields.get("name")
        if name is None:
            raise InvalidRequest("name is missing.", "name", "missing_required_parameter")
        return await publish(resources, tenant_id, name, upload.folder, actor)


@asynccontextmanager
async def received(
    settings: Settings,
    content_type: str,
    chunks: AsyncIterator[bytes],
    fields: tuple[str, ...] = ("name",),
) -> AsyncIterator[Upload]:
    """Write a form's files to disk as they come; `fields` are its other parts."""
    folder = _staging(settings) / uuid.uuid4().hex
    form = UploadForm(content_type, folder, fields)
    try:
        await _on_disk(lambda: folder.mkdir(parents=True))
        async for chunk in chunks:
            await _on_disk(lambda chunk=chunk: form.feed(chunk))  # type: ignore[misc]  # of a default that binds
        yield Upload(form.finish(), folder)
    finally:
        await in_thread(lambda: _discard(form, folder))


async def publish(
    resources: Resources, tenant_id: str, name: str, folder: Path, actor: str = audit.PLATFORM
) -> PublishedVersion:
    """Check a checkpoint's folder against the served model, store it, make it the newest version.

    Raises InvalidRequest for its name, CheckpointInvalid, VersionConflict, AdapterTooLarge,
    StorageLimitReached, EngineUnavailable, StorageUnavailable.
    """
    _check_name(name)
    model = resources.engine.model
    base = base_shapes(model)
    act = Act(actor, resources.now())
    try:
        async with resources.checks:
            checkpoint = await _on_disk(lambda: inspect(folder, base))
    except CheckpointInvalid as error:
        await _tell_rejection(resources, act, tenant_id, name, error)
        raise
    publication = Publication(
        name,
        checkpoint.digest,
        checkpoint.rank,
        checkpoint.num_bytes,
        model.name,
        len(checkpoint.modules),
    )
    return await _store_and_publish(resources, act, tenant_id, checkpoint, publication)


async def _store_and_publish(
    resources: Resources, act: Act, tenant_id: str, checkpoint: Checkpoint, publication: Publication
) -> PublishedVersion:
    store = store_of(resources.settings)

    async def keep() -> None:
        await _on_disk(lambda: store.put(checkpoint))

    async with resources.database.reader() as session:
        await storage_use.check_limits(session, tenant_id, publication)
    await keep()
    try:
        async with resources.database.session() as session:
            return await registry.publish(session, tenant_id, publication, act.at, act.actor, keep)
    except RegistryError:
        async with resources.database.session() as session:
            await storage_use.remove_unnamed(
                session, checkpoint.digest, removal(resources.settings)
            )
        raise


async def _tell_rejection(
    resources: Resources, act: Act, tenant_id: str, name: str, error: CheckpointInvalid
) -> None:
    async with resources.database.session() as session:
        tenant = await directory.get(session, tenant_id)
        detail = {"problems": error.problems[:MAX_TOLD_PROBLEMS]}
        subject = f"{tenant.name}/{name}"
        await audit.append(session, act, tenant_id, "adapter.reject", subject, detail)


def _check_name(name: str) -> None:
    try:
        check_slug(name, "The adapter's name")
    except NameInvalid as error:
        hint = " Give it without the tenant." if "/" in name else ""
        raise InvalidRequest(f"{error}{hint}", "name") from None


def base_shapes(model: ModelInfo) -> BaseShapes:
    """What adapters of the served model must fit. Raises EngineUnavailable."""
    shapes = model.shapes
    if shapes is None:
        raise EngineUnavailable(
            f"The engine of {model.name} has not told its layers, so no adapter can be checked."
        )
    return shapes_told(shapes)


def sweep(settings: Settings, now_s: float) -> None:
    """Remove what killed processes left of uploads; `now_s` is in seconds since the epoch."""
    for folder in _staging(settings).glob("*"):
        if now_s - folder.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)


def _staging(settings: Settings) -> Path:
    return settings.data_dir / "uploads"


async def _on_disk(work: Callable[[], T]) -> T:
    """Do what reads and writes files. Raises StorageUnavailable where the disk refuses."""
    try:
        return await in_thread(work)
    except OSError as error:
        raise StorageUnavailable(error.strerror or type(error).__name__) from error


def _discard(form: UploadForm, folder: Path) -> None:
    with suppress(OSError):  # what a full disk refused, it refuses again
        form.close()
    shutil.rmtree(folder, ignore_errors=True)
