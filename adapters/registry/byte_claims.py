"""Who puts bytes of adapters into the store now, and who takes them out of it.

The store may be slow, so nobody waits for it in a transaction. Whoever puts bytes there, or removes
them, claims their digest in a transaction before:

    keep      claim ── put the bytes ── publish, which gives the claim up in its transaction
    remove    claim ── remove the bytes ── give the claim up

A removal begins only while no version names the digest and nobody keeps it; a keep begins only
while nobody removes it. So bytes that were put under a claim are there when their version is
published, and stay. Both look under the lock of the digest, so that none overlooks the other.

Who is killed leaves a claim. After its lease it counts for nothing: a removal is begun again by
others, and what was kept for no version is swept. No work takes as long as its lease.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.errors import BytesLeaving
from loraplex.adapters.registry.tables import AdapterVersion, BytesClaim
from loraplex.tenants.dialects import lock_text

KEEP_LEASE = timedelta(days=1)
REMOVE_LEASE = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody's right to put the bytes of a digest, or to remove them."""

    id: int
    digest: str


async def lock_digest(session: AsyncSession, digest: str) -> None:
    """Until this transaction ends, nobody else claims or publishes these bytes. Whoever locks an
    adapter too does that before, so that no two wait for each other."""
    await lock_text(session, f"adapter bytes {digest}")


async def begin_keep(session: AsyncSession, digest: str, now: datetime) -> Claim:
    """Let nobody remove these bytes, which are put into the store after this transaction.

    Raises:
        BytesLeaving: they are being removed.
    """
    await lock_digest(session, digest)
    if "remove" in await _kinds(session, digest):
        raise BytesLeaving("The same bytes are being removed from the store; try again.")
    return await _add(session, digest, "keep", now)


async def end_keep(session: AsyncSession, claim: Claim) -> None:
    """The bytes are there, and a version of this transaction, which holds their lock, names them.

    Raises:
        BytesLeaving: the claim's lease was over, and they may have been removed.
    """
    result = await session.execute(delete(BytesClaim).where(BytesClaim.id == claim.id))
    if not result.rowcount:  # type: ignore[attr-defined]  # of a delete
        raise BytesLeaving("Storing the adapter took too long; try again.")


async def begin_removal(session: AsyncSession, digest: str, now: datetime) -> Claim | None:
    """Claim bytes to remove them after this transaction; None if a version of whichever tenant
    names them, or somebody keeps or removes them."""
    await lock_digest(session, digest)
    over = (BytesClaim.began_at < now - KEEP_LEASE) | (
        (BytesClaim.kind == "remove") & (BytesClaim.began_at < now - REMOVE_LEASE)
    )
    await session.execute(delete(BytesClaim).where(BytesClaim.digest == digest, over))
    if await _kinds(session, digest) or await named(session, [digest]):
        return None
    return await _add(session, digest, "remove", now)


async def give_up(session: AsyncSession, claim: Claim) -> None:
    """The bytes were removed, or are not kept."""
    await session.execute(delete(BytesClaim).where(BytesClaim.id == claim.id))


async def unfinished(session: AsyncSession, now: datetime) -> list[str]:
    """Digests whose removal somebody left to others."""
    over = BytesClaim.began_at < now - REMOVE_LEASE
    query = select(BytesClaim.digest).where(BytesClaim.kind == "remove", over)
    return list(await session.scalars(query))


async def named(session: AsyncSession, digests: Collection[str]) -> set[str]:
    """Those of the digests that a version names which is not deleted."""
    query = select(AdapterVersion.digest).where(
        AdapterVersion.digest.in_(digests), AdapterVersion.status != "deleted"
    )
    return set(await session.scalars(query))


async def _kinds(session: AsyncSession, digest: str) -> set[str]:
    query = select(BytesClaim.kind).where(BytesClaim.digest == digest)
    return set(await session.scalars(query))


async def _add(session: AsyncSession, digest: str, kind: str, now: datetime) -> Claim:
    row = BytesClaim(digest=digest, kind=kind, began_at=now)
    session.add(row)
    await session.flush()
    return Claim(row.id, digest)
