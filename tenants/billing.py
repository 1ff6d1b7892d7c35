"""Billing periods: calendar months in UTC, half-open, whatever a tenant's time zone is.

Months of budgets are the tenant's own (`periods.py`): where its zone is not UTC, the requests of a
budget's month and those of the invoice of that name differ by those of some hours at both ends.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from loraplex.tenants.errors import ValueRefused


@dataclass(frozen=True, slots=True)
class BillingPeriod:
    """One month; a request belongs to the period in which it was accepted."""

    name: str
    """`2026-11`."""
    start: datetime
    end: datetime
    """Start of the next one; not part of this one."""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read `YYYY-MM`.

        Raises:
            ValueRefused: it is none.
        """
        match = re.fullmatch(r"([1-9][0-9]{3})-(0[1-9]|1[0-2])", name, re.ASCII)
        if match is None or match[1] == "9999":
            raise ValueRefused(f"A period looks like 2026-11, not {name[:40]!r}.", "period")
        year, month = int(match[1]), int(match[2])
        start = datetime(year, month, 1, tzinfo=UTC)
        end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        return cls(name, start, end)
