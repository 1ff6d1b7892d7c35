"""Writes that may be sent again: one effect and one answer per key, whatever is lost on the way.

A row claims the key before the effect. Effect and answer are then committed together, so a claim
without an answer has had no effect, and is taken over once whoever made it must be gone.
Secrets of an answer are not stored: they are made from the deployment's secret and the row's random
nonce, and made again when the answer is repeated. With the row, after 24 hours, that way is gone.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import IdempotencyInProgress, IdempotencyKeyReused, ValueRefused
from loraplex.tenants.ids import Entropy
from loraplex.tenants.tables import IdempotencyRow

KEPT = timedelta(hours=24)
LEASE = timedelta(minutes=1)
"""After this a claim without an answer is taken over."""
MAX_KEY_CHARS = 255


@dataclass(frozen=True, slots=True)
class Attempt:
    """One POST and the key that it came with."""

    owner: str
    """Id of the key that sent it; those of another sender are other keys."""
    key: str
    fingerprint: str
    """SHA-256 of all that must be the same when it is sent again, in hex."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to serve an attempt."""

    attempt: Attempt
    nonce: str

    def entropy(self, pepper: bytes) -> Entropy:
        """Randomness that the claim and the deployment's secret determine, in order of calls."""
        return _derived_entropy(self.nonce, pepper)


@dataclass(frozen=True, slots=True)
class Answered:
    """The attempt was served before."""

    status: int
    answer: bytes
    nonce: str

    def entropy(self, pepper: bytes) -> Entropy:
        """The randomness that the answer was made with, from its beginning."""
        return _derived_entropy(self.nonce, pepper)


def fingerprint(*parts: bytes) -> str:
    """SHA-256 of the parts, each with its length before it."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(len(part).to_bytes(8, "little") + part)
    return sha256.hexdigest()


async def claim(
    session: AsyncSession, attempt: Attempt, now: datetime, entropy: Entropy
) -> Claim | Answered:
    """Claim the key, or return what it was answered with; commit before the effect.

    Raises:
        ValueRefused: the key is empty or too long.
        IdempotencyKeyReused: it came with another request.
        IdempotencyInProgress: another process serves it now.
    """
    if not 1 <= len(attempt.key) <= MAX_KEY_CHARS:
        raise ValueRefused(
            f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters.", "idempotency-key"
        )
    await session.execute(delete(IdempotencyRow).where(IdempotencyRow.claimed_at < now - KEPT))
    nonce = entropy(32).hex()
    values = {
        "owner": attempt.owner,
        "key": attempt.key,
        "fingerprint": attempt.fingerprint,
        "nonce": nonce,
        "claimed_at": now,
    }
    await session.execute(insert_unless_there(session, IdempotencyRow, "owner", "key", **values))
    row = await session.get_one(
        IdempotencyRow, (attempt.owner, attempt.key), with_for_update=True, populate_existing=True
    )
    if row.nonce == nonce:
        return Claim(attempt, nonce)
    if row.fingerprint != attempt.fingerprint:
        raise IdempotencyKeyReused
    if row.status is not None and row.answer is not None:
        return Answered(row.status, row.answer, row.nonce)
    if now - row.claimed_at < LEASE:
        raise IdempotencyInProgress
    row.nonce, row.claimed_at = nonce, now
    await session.flush()
    return Claim(attempt, nonce)


async def answer(session: AsyncSession, claimed: Claim, status: int, body: bytes) -> None:
    """Store the answer, in the transaction of the effect.

    Raises:
        IdempotencyInProgress: the claim was taken over, so this effect must be rolled back.
    """
    attempt = claimed.attempt
    mine = (
        update(IdempotencyRow)
        .where(
            IdempotencyRow.owner == attempt.owner,
            IdempotencyRow.key == attempt.key,
            IdempotencyRow.nonce == claimed.nonce,
        )
        .values(status=status, answer=body)
        .returning(IdempotencyRow.key)
    )
    if await session.scalar(mine) is None:
        raise IdempotencyInProgress


async def release(session: AsyncSession, claimed: Claim) -> None:
    """Give the claim back after an attempt that failed and had no effect."""
    attempt = claimed.attempt
    await session.execute(
        delete(IdempotencyRow).where(
            IdempotencyRow.owner == attempt.owner,
            IdempotencyRow.key == attempt.key,
            IdempotencyRow.nonce == claimed.nonce,
            IdempotencyRow.status.is_(None),
        )
    )


def _derived_entropy(nonce: str, pepper: bytes) -> Entropy:
    calls = iter(range(1 << 32))

    def entropy(num_bytes: int) -> bytes:
        message = f"loraplex idempotent answer\0{nonce}\0{next(calls)}".encode()
        derived = hmac.digest(pepper, message, hashlib.sha512)
        assert num_bytes <= len(derived)
        return derived[:num_bytes]

    return entropy
