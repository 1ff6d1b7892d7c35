"""Months of time zones, wherever clocks are set back or forward, and by whatever rule."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.periods import Calendar, month_of
from loraplex.tenants.time_zones import zone_named

ZONES = sorted(available_timezones() - {"localtime", "posixrules"})
KNOWN_FOR = (
    "America/Havana",  # sets clocks forward at midnight, and back to midnight
    "Asia/Beirut",
    "Africa/Cairo",
    "America/Asuncion",
    "America/Sao_Paulo",
    "Atlantic/Azores",
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Kwajalein",  # had no 21 August 1993
    "Asia/Manila",
    "Asia/Tokyo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Africa/Monrovia",
    "America/St_Johns",  # set clocks back at a minute past midnight
    "Antarctica/Troll",
)

seconds = st.integers(
    int(datetime(1975, 1, 2, tzinfo=UTC).timestamp()),
    int(datetime(2099, 12, 30, tzinfo=UTC).timestamp()),
)
instants = seconds.map(lambda since_1970_s: datetime.fromtimestamp(since_1970_s, UTC))
zones = st.one_of(st.sampled_from(KNOWN_FOR), st.sampled_from(ZONES)).map(ZoneInfo)
near_months = st.builds(
    lambda year, month, off_s: datetime(year, month, 1, tzinfo=UTC) + timedelta(seconds=off_s),
    st.integers(1975, 2099),
    st.integers(1, 12),
    st.integers(-50 * 3600, 50 * 3600),
)


@example(at=datetime(2009, 11, 1, 2, 40, tzinfo=UTC), zone=ZoneInfo("America/St_Johns"))
@given(at=st.one_of(instants, near_months), zone=zones)
def test_an_instant_is_in_its_month_which_touches_both_neighbours(
    at: datetime, zone: ZoneInfo
) -> None:
    month = month_of(at, zone)

    assert at in month
    assert month_of(month.start, zone) == month
    assert month_of(month.end - timedelta(microseconds=1), zone) == month
    assert month_of(month.end, zone).start == month.end
    assert month_of(month.start - timedelta(microseconds=1), zone).end == month.start
    assert timedelta(days=26) < month.end - month.start < timedelta(days=33)


@st.composite
def changed_calendars(draw: st.DrawFn) -> tuple[list[tuple[datetime, Calendar]], datetime]:
    """Calendars of a tenant that chose other zones, since when it had each, and a later time."""
    at = draw(st.one_of(instants, near_months))
    steps = [(at, Calendar(draw(zones)))]
    for _ in range(draw(st.integers(1, 5))):
        pause = st.one_of(st.integers(0, 70 * 24 * 3600), st.integers(27 * 24, 32 * 24))
        at += timedelta(seconds=draw(pause))
        steps.append((at, steps[-1][1].changed(at, draw(zones))))
    return steps, at + timedelta(seconds=draw(st.integers(0, 100 * 24 * 3600)))


@given(history=changed_calendars())
def test_whatever_zones_a_tenant_chooses_months_stay_adjacent_and_begun_ones_keep_their_beginning(
    history: tuple[list[tuple[datetime, Calendar]], datetime],
) -> None:
    steps, later = history
    for (_, before), (at, after) in pairwise(steps):
        assert Calendar.parse(after.zone.key, after.earlier_text) == after
        running, now = before.month_of(at), after.month_of(at)
        assert now.start == running.start
        assert before.month_of(running.start - timedelta(microseconds=1)) == after.month_of(
            running.start - timedelta(microseconds=1)
        )
        assert now.end == running.end
    calendar, at = steps[-1][1], steps[0][0]
    while at < later:
        month = calendar.month_of(at)
        assert at in month
        assert calendar.month_of(month.start) == month
        assert calendar.month_of(month.end - timedelta(microseconds=1)) == month
        assert calendar.month_of(month.end).start == month.end
        assert timedelta(days=25) < month.end - month.start < timedelta(days=34)
        at = month.end


def test_a_zone_that_is_chosen_in_a_month_begins_with_the_next_one() -> None:
    chosen = Calendar(zone_named("Europe/Berlin")).changed(
        _utc("2026-11-15"), zone_named("America/New_York")
    )
    assert chosen.earlier_text == "2026-12 Europe/Berlin"
    months = [chosen.month_of(_utc(f"2026-{month}-15")) for month in (11, 12)]
    assert [(month.start, month.end) for month in months] == [
        (_utc("2026-10-31 23:00"), _utc("2026-11-30 23:00")),
        (_utc("2026-11-30 23:00"), _utc("2027-01-01 05:00")),
    ]
    # Of two choices in a month the second counts, and none is left of one that is taken back.
    again = chosen.changed(_utc("2026-11-16"), zone_named("Asia/Tokyo"))
    assert again.earlier_text == "2026-12 Europe/Berlin"
    assert again.changed(_utc("2026-11-17"), zone_named("Europe/Berlin")).earlier == ()


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "at", "start", "end"),
    [
        ("UTC", "2026-01-31 23:59:59.999999", "2026-01-01 00:00", "2026-02-01 00:00"),
        ("UTC", "2028-02-29 12:00", "2028-02-01 00:00", "2028-03-01 00:00"),
        ("Asia/Tokyo", "2026-02-28 15:00", "2026-02-28 15:00", "2026-03-31 15:00"),
        ("Asia/Kolkata", "2026-02-28 18:29", "2026-01-31 18:30", "2026-02-28 18:30"),
        # A month with the hour that is lost, and one with the hour that comes twice.
        ("Europe/Berlin", "2026-03-15 12:00", "2026-02-28 23:00", "2026-03-31 22:00"),
        ("Europe/Berlin", "2026-10-15 12:00", "2026-09-30 22:00", "2026-10-31 23:00"),
        # Clocks are set from midnight to one: the month begins as they are.
        ("America/Havana", "2018-04-01 05:00", "2018-04-01 04:00", "2018-05-01 04:00"),
        ("America/Havana", "2001-04-01 05:00", "2001-04-01 05:00", "2001-05-01 04:00"),
        ("Africa/Cairo", "2010-10-01 00:00", "2010-09-30 22:00", "2010-10-31 22:00"),
        # Clocks show October once more after midnight: that hour is November's.
        ("America/St_Johns", "2009-11-01 02:31", "2009-11-01 02:30", "2009-12-01 03:30"),
        # Midnight comes twice: the hour before the second is the new month's already.
        ("America/Havana", "2020-11-01 04:30", "2020-11-01 04:00", "2020-12-01 05:00"),
        ("America/Havana", "2020-11-01 05:30", "2020-11-01 04:00", "2020-12-01 05:00"),
        # The day before the month's first was in no calendar there.
        ("Pacific/Apia", "2011-12-30 09:59", "2011-12-01 10:00", "2011-12-31 10:00"),
        ("Pacific/Apia", "2011-12-31 10:00", "2011-12-31 10:00", "2012-01-31 10:00"),
    ],
)
def test_a_month_begins_where_clocks_first_show_its_first_day(
    zone: str, at: str, start: str, end: str
) -> None:
    month = month_of(_utc(at), zone_named(zone))

    assert (month.start, month.end) == (_utc(start), _utc(end))


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../etc/passwd", "Europe", "+01:00", "a\0b"])
def test_a_zone_that_is_not_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueRefused, match="time_zone"):
        zone_named(name)
