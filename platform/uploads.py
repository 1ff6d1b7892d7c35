"""Adapters that come over the network: received, checked, stored, published. No HTTP here."""

import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import Checkpoint, inspect
from loraplex.adapters.registry import registry
from loraplex.adapters.registry.registry import Publication, PublishedVersion
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.errors import EngineUnavailable
from loraplex.engine.protocol import LinearShapes, ModelInfo
from loraplex.platform.errors import InvalidRequest, StorageUnavailable
from loraplex.platform.self_tests import tested
from loraplex.platform.services import Resources
from loraplex.platform.settings import Settings
from loraplex.platform.threads import in_thread
from loraplex.platform.upload_form import UploadForm
from loraplex.tenants.errors import NameInvalid
from loraplex.tenants.ids import check_slug

T = TypeVar("T")

ABANDONED_S = 86_400.0
"""No upload takes that long: what is older was left by a process that was killed."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A form that was received whole: its files lie in a folder that goes when it is left."""

    fields: Mapping[str, str]
    folder: Path


async def receive(
    resources: Resources, tenant_id: str, content_type: str, chunks: AsyncIterator[bytes]
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
        return await publish(resources, tenant_id, name, upload.folder)


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
    resources: Resources, tenant_id: str, name: str, folder: Path
) -> PublishedVersion:
    """Check a checkpoint's folder against the served model, store it, make it the newest version.

    Raises InvalidRequest for its name, CheckpointInvalid, also if its self-test fails,
    VersionConflict, EngineUnavailable, StorageUnavailable.
    """
    _check_name(name)
    model = resources.engine.model
    base = base_shapes(model)
    async with resources.checks:
        checkpoint = await _on_disk(lambda: _check_and_store(resources.settings, folder, base))
        self_test = await tested(resources, tenant_id, checkpoint.digest)
    publication = Publication(
        name,
        checkpoint.digest,
        checkpoint.rank,
        checkpoint.num_bytes,
        model.name,
        self_test=self_test,
    )
    async with resources.database.session() as session:
        return await registry.publish(session, tenant_id, publication, resources.now())


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


def shapes_told(shapes: LinearShapes) -> BaseShapes:
    """The same as a worker tells it."""
    return BaseShapes(
        linears=MappingProxyType(shapes.linears),
        embeddings=MappingProxyType(shapes.embeddings),
        heads=frozenset(shapes.heads),
        token_embedding=shapes.token_embedding,
        is_tied=shapes.is_tied,
        biases=MappingProxyType(shapes.biases),
        parameters=MappingProxyType(shapes.parameters),
    )


def sweep(settings: Settings, now_s: float) -> None:
    """Remove what killed processes left of uploads; `now_s` is in seconds since the epoch."""
    for folder in _staging(settings).glob("*"):
        if now_s - folder.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)


def _staging(settings: Settings) -> Path:
    return settings.data_dir / "uploads"


def _check_and_store(settings: Settings, folder: Path, base: BaseShapes) -> Checkpoint:
    checkpoint = inspect(folder, base)
    AdapterStore(settings.adapters_dir).put(checkpoint)
    return checkpoint


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
