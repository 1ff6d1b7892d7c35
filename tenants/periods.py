"""Months of a tenant as half-open spans of UTC: any instant is in exactly one."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True)
class Period:
    """From `start` until before `end`, both in UTC."""

    start: datetime
    end: datetime

    def __contains__(self, at: datetime) -> bool:
        return self.start <= at < self.end


@dataclass(frozen=True, slots=True)
class Calendar:
    """Months of a time zone and, before it was chosen, of others.

    A month ends when the next one begins in its own zone, so that a change of the zone makes one
    month longer or shorter by the difference, and leaves neither a gap nor two months at a time.
    """

    zone: ZoneInfo
    earlier: tuple[tuple[int, ZoneInfo], ...] = ()
    """Of the zones before, the first month that is no longer theirs, in months since the year 0;
    oldest first."""

    @classmethod
    def parse(cls, zone: str, earlier: str) -> Self:
        """Return a calendar as the database has it: the zone, and `2026-12 Europe/Berlin,…`."""
        entries = (entry.split(" ") for entry in earlier.split(",") if entry)
        return cls(ZoneInfo(zone), tuple((_number(month), ZoneInfo(of)) for month, of in entries))

    @property
    def earlier_text(self) -> str:
        """The zones before, as `parse` reads them."""
        return ",".join(
            f"{number // 12:04d}-{number % 12 + 1:02d} {zone.key}" for number, zone in self.earlier
        )

    def month_of(self, at: datetime) -> Period:
        """Return the month that has the instant.

        A month begins at the first instant that clocks show its first day, in the zone of the month
        before. Where they are set back over that midnight they show the old month once more: that
        hour is the new month's.
        """
        number = self._number_of(at)
        return Period(self._begin(number), self._begin(number + 1))

    def changed(self, at: datetime, zone: ZoneInfo) -> Self:
        """Return the calendar of a tenant that chooses another zone: from the next month on."""
        running = self._number_of(at)
        earlier = tuple(entry for entry in self.earlier if entry[0] <= running)
        present = self._zone_of(running)
        if present.key != zone.key:
            earlier = (*earlier, (running + 1, present))
        return type(self)(zone, earlier)

    def _number_of(self, at: datetime) -> int:
        in_utc = at.astimezone(UTC)
        number = in_utc.year * 12 + in_utc.month - 1
        # Clocks are less than a day apart anywhere.
        if at < self._begin(number):
            return number - 1
        return number + 1 if at >= self._begin(number + 1) else number

    def _zone_of(self, number: int) -> ZoneInfo:
        return next((zone for until, zone in self.earlier if number < until), self.zone)

    def _begin(self, number: int) -> datetime:
        """The first instant of a month; of a midnight that clocks skip, the one they skip it at."""
        zone = self._zone_of(number - 1)
        return datetime(number // 12, number % 12 + 1, 1, tzinfo=zone).astimezone(UTC)


def month_of(at: datetime, zone: ZoneInfo) -> Period:
    """Return the month that has the instant, where the zone was never another."""
    return Calendar(zone).month_of(at)


def _number(month: str) -> int:
    year, of_year = month.split("-")
    return int(year) * 12 + int(of_year) - 1
