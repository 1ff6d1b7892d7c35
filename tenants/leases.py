"""How long an intent is its gateway's, and how others take it over."""

from dataclasses import dataclass
from datetime import timedelta

MAX_RENEW_S = 20.0
"""Holds in the quota store are renewed at the same time, and their leases take a minute."""
MAX_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True)
class Lease:
    """What one gateway's intents are leased by."""

    gateway_id: str
    length_s: float

    @property
    def length(self) -> timedelta:
        """From each renewal on."""
        return timedelta(seconds=self.length_s)

    @property
    def renew_s(self) -> float:
        """The pause between renewals: two may fail before the lease is over."""
        return min(self.length_s / 3, MAX_RENEW_S)

    @property
    def grace(self) -> timedelta:
        """What the owner of an intent has from its claim on to take it back: time to renew."""
        return timedelta(seconds=self.length_s / 2)

    @property
    def sweep_s(self) -> float:
        """The pause between looks for leases that are over."""
        return self.length_s / 12

    @property
    def max_backoff_s(self) -> float:
        """The longest pause of an owner that tries to write to a database that is away: it must be
        back within the grace, or others settle for it."""
        return min(self.length_s / 12, MAX_BACKOFF_S)
