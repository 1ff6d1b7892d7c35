"""`/v1/adapters/uploads` and `/v1/adapters/import`: adapters in pieces, and by reference."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from loraplex.adapters.registry import uploads
from loraplex.platform import resumable
from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.owner import actor_of
from loraplex.platform.api.paging import Listing, Page, View, listing
from loraplex.platform.api.unread import refuse_unread
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import Caller, ServicesOf, body_of, chunks_of, principal_of
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.imports import Reference, import_adapter
from loraplex.platform.log import AccessLine
from loraplex.platform.permissions import caller_may
from loraplex.platform.resumable import Piece, UploadProgress

router = APIRouter(tags=["adapters"], dependencies=[Depends(principal_of), Depends(refuse_unread)])

OFFSET_HEADER, LENGTH_HEADER = "upload-offset", "upload-length"
FILE_PATH = "/v1/adapters/uploads/{upload_id}/{file}"
MAX_LISTED = 1000
PIECE_TYPE = "application/offset+octet-stream"
_OCTETS: Mapping[str, object] = {"schema": {"type": "string", "format": "binary"}}
_PIECE: Mapping[str, object] = {
    "requestBody": {"required": True, "content": {PIECE_TYPE: _OCTETS}},
    "parameters": [
        {
            "in": "header",
            "name": "Upload-Offset",
            "required": True,
            "schema": {"type": "integer", "minimum": 0},
        }
    ],
}


class FileBody(Schema):
    """A file that is announced."""

    num_bytes: Annotated[int, Field(alias="bytes")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """In hexadecimal; compared when all is there."""


def _with_length(file: object) -> object:
    """A length alone is a file of which no more is known."""
    return file if isinstance(file, dict) else {"bytes": file}


class UploadBody(Schema):
    """An upload that is announced."""

    name: str
    files: Annotated[
        dict[
            str,
            Annotated[
                FileBody,
                BeforeValidator(
                    _with_length, json_schema_input_type=Annotated[int, Field(ge=1)] | FileBody
                ),
            ],
        ],
        Field(max_length=16),
    ]
    """File name to its length in bytes, or that with its SHA-256."""


class ImportBody(Schema):
    """An adapter in one of the platform's sources."""

    name: str
    source: str
    path: str


class ProblemView(BaseModel):
    """One reason why an upload is rejected."""

    field: str
    value: str
    reason: str


class FileView(BaseModel):
    """A file of an upload, in bytes."""

    received: int
    total: int
    sha256: str | None
    """As announced."""


class UploadView(View):
    """An upload."""

    object: Literal["adapter.upload"] = "adapter.upload"
    name: str
    status: Literal["uploading", "validating", "ready", "rejected", "cancelled"]
    source: str | None
    """`source:path` of an import."""
    files: Mapping[str, FileView]
    received_bytes: int
    total_bytes: int
    problems: list[ProblemView]
    version: str | None
    """`tenant/adapter@3`, once it is ready."""
    warnings: list[str]
    """What is legal in that version and yet hardly meant."""
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, progress: UploadProgress) -> Self:
        """Show it."""
        record, offsets = progress.record, progress.offsets
        return cls(
            id=record.id,
            name=record.name,
            status=record.status,
            source=record.source,
            files={
                name: FileView(
                    received=offsets.get(name, 0), total=total, sha256=record.sha256.get(name)
                )
                for name, total in record.files.items()
            },
            received_bytes=sum(offsets.values()),
            total_bytes=sum(record.files.values()),
            problems=[ProblemView(**problem._asdict()) for problem in record.problems],
            version=record.version,
            warnings=list(record.warnings),
            created_at=record.created_at,
            updated_at=record.updated_at,
        )


@router.post(
    "/v1/adapters/uploads",
    status_code=201,
    openapi_extra=request_body_of(UploadBody),
    dependencies=[caller_may("adapters.write")],
)
async def begin_upload(request: Request, caller: Caller, services: ServicesOf) -> UploadView:
    """Announce the files of an adapter and their lengths; they are sent in pieces."""
    asked = parse_exactly(await body_of(request), UploadBody)
    lengths = {name: file.num_bytes for name, file in asked.files.items()}
    sha256 = {name: file.sha256 for name, file in asked.files.items() if file.sha256}
    progress = await resumable.begin(
        services.resources, caller.tenant_id, asked.name, lengths, sha256
    )
    return UploadView.of(progress)


@router.get("/v1/adapters/uploads", dependencies=[caller_may("adapters.read")])
async def list_uploads(
    caller: Caller, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[UploadView]:
    """List the newest thousand uploads of every kind, and what became of them."""
    resources = services.resources
    async with resources.database.reader() as session:
        records = await uploads.list_uploads(session, caller.tenant_id, MAX_LISTED)
    views = [UploadView.of(await resumable.progress_of(resources, record)) for record in records]
    return listing(views, page)


@router.get("/v1/adapters/uploads/{upload_id}", dependencies=[caller_may("adapters.read")])
async def retrieve_upload(upload_id: str, caller: Caller, services: ServicesOf) -> UploadView:
    """Tell how an upload stands."""
    progress = await resumable.look(services.resources, caller.tenant_id, upload_id)
    return UploadView.of(progress)


@router.head(FILE_PATH, dependencies=[caller_may("adapters.read")])
async def look_at_file(upload_id: str, file: str, caller: Caller, services: ServicesOf) -> Response:
    """Tell in headers how many bytes of a file are there, and how many it will have."""
    progress = await resumable.look(services.resources, caller.tenant_id, upload_id)
    total = progress.record.files.get(file)
    if total is None:
        return Response(status_code=404)
    headers = {
        OFFSET_HEADER: str(progress.offsets.get(file, 0)),
        LENGTH_HEADER: str(total),
        "cache-control": "no-store",
    }
    return Response(headers=headers)


@router.patch(
    "/v1/adapters/uploads/{upload_id}/{file}",
    status_code=204,
    openapi_extra=dict(_PIECE),
    dependencies=[caller_may("adapters.write")],
)
async def append_to_file(
    upload_id: str, file: str, request: Request, caller: Caller, services: ServicesOf
) -> Response:
    """Append bytes to a file. What came before a connection broke stays; ask where to go on."""
    piece = Piece(upload_id, file, _offset(request))
    size = await resumable.append(services.resources, caller.tenant_id, piece, chunks_of(request))
    return Response(status_code=204, headers={OFFSET_HEADER: str(size)})


@router.post(
    "/v1/adapters/uploads/{upload_id}/complete", dependencies=[caller_may("adapters.write")]
)
async def complete_upload(
    upload_id: str, request: Request, caller: Caller, services: ServicesOf
) -> UploadView:
    """Check an upload whose bytes are all there, and publish it. It may be asked again."""
    resources = services.resources
    actor = actor_of(caller, AccessLine.of(request.scope).request_id)
    record = await resumable.complete(resources, caller.tenant_id, upload_id, actor)
    return UploadView.of(await resumable.progress_of(resources, record))


@router.delete(
    "/v1/adapters/uploads/{upload_id}", status_code=204, dependencies=[caller_may("adapters.write")]
)
async def cancel_upload(upload_id: str, caller: Caller, services: ServicesOf) -> Response:
    """Give an upload up; its bytes go."""
    await resumable.cancel(services.resources, caller.tenant_id, upload_id)
    return Response(status_code=204)


@router.post(
    "/v1/adapters/import",
    status_code=201,
    openapi_extra=request_body_of(ImportBody),
    dependencies=[caller_may("adapters.write")],
)
async def import_by_reference(
    request: Request, caller: Caller, services: ServicesOf
) -> AdapterVersionView:
    """Publish an adapter that lies in one of the platform's sources."""
    asked = parse_exactly(await body_of(request), ImportBody)
    version = await import_adapter(
        services.resources,
        caller.tenant_id,
        asked.name,
        Reference(asked.source, asked.path),
        actor_of(caller, AccessLine.of(request.scope).request_id),
    )
    return AdapterVersionView.of(version)


def _offset(request: Request) -> int:
    text = request.headers.get(OFFSET_HEADER, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidRequest(
            "Upload-Offset must be the number of bytes that the file has.", "upload-offset"
        )
    return int(text)
