"""Passwords of people: argon2id (RFC 9106), a salt each; what they are is nowhere.

A hash takes about 50 ms of a core and 32 MiB. It runs in a thread, two at a time at most, and few
may wait, so that whoever tries passwords takes neither the event loop, nor the memory, nor the time
of those who come after. Nobody waits here with a session of the database in hand.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from loraplex.tenants.errors import PasswordsBusy, ValueRefused

MIN_CHARS, MAX_CHARS = 12, 1000
MAX_AT_A_TIME = 2
MAX_WAITING = 30
"""About a second of waiting."""


def _hasher() -> PasswordHasher:
    return PasswordHasher(time_cost=2, memory_cost=32 * 1024, parallelism=1)


@dataclass(frozen=True, slots=True)
class Passwords:
    """Hashes passwords, and compares them with hashes."""

    hasher: PasswordHasher = field(default_factory=_hasher)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_A_TIME))
    places: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_AT_A_TIME + MAX_WAITING)
    )
    """Of those who have a turn or wait for one."""

    async def hash(self, password: str) -> str:
        """Return what is stored of a new password.

        Raises:
            ValueRefused: it is too short or too long.
            PasswordsBusy: too many wait already.
        """
        check_new_password(password)
        async with self._turn():
            return await asyncio.to_thread(self.hasher.hash, password)

    async def is_right(self, password: str, stored: str | None) -> bool:
        """Compare with what is stored; where nothing is, this takes as long and is never right.

        Raises:
            PasswordsBusy: too many wait already.
        """
        async with self._turn():
            return await asyncio.to_thread(self._compare, password, stored)

    def is_outdated(self, stored: str) -> bool:
        """True if new hashes are made with other parameters, so that this one should be, too."""
        return self.hasher.check_needs_rehash(stored)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self.places.locked():
            raise PasswordsBusy
        async with self.places, self.turns:
            yield

    def _compare(self, password: str, stored: str | None) -> bool:
        if len(password) > MAX_CHARS:
            password, stored = "", None
        if stored is None:
            self.hasher.hash(password)
            return False
        try:
            return self.hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False


def check_new_password(password: str) -> None:
    """Refuse what nobody should choose.

    Raises:
        ValueRefused: it has fewer than 12 characters, or more than 1000.
    """
    if not MIN_CHARS <= len(password) <= MAX_CHARS:
        raise ValueRefused(
            f"The password must have {MIN_CHARS} to {MAX_CHARS} characters, not {len(password)}.",
            "password",
        )
