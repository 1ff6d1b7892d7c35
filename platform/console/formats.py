"""How pages write numbers, sizes and times."""

from datetime import UTC, datetime, timedelta

from markupsafe import Markup

NOTHING = "–"
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def number(value: float | None, digits: int = 0) -> str:
    """`12,345.6`; a dash for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def compact(value: float | None) -> str:
    """`9,999`, `12.3k`, `4.5M`: at most five characters."""
    if value is None:
        return NOTHING
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor and value >= 10_000:
            scaled = value / factor
            digits = 0 if scaled >= 100 or scaled == round(scaled) else 1
            return f"{scaled:.{digits}f}{unit}"
    return f"{value:,.0f}"


def size(num_bytes: int) -> str:
    """`4.7 MiB`."""
    value, units = float(num_bytes), ("bytes", "KiB", "MiB", "GiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


def milliseconds(value: float | None) -> str:
    """`87 ms`, `1.24 s`."""
    if value is None:
        return NOTHING
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def utc(value: datetime | None) -> Markup | str:
    """The time in UTC, to the second, for people and machines."""
    if value is None:
        return NOTHING
    value = value.astimezone(UTC)
    text = f"{value:%d %b %Y, %H:%M:%S}"
    return Markup('<time datetime="{}">{}</time>').format(value.isoformat(), text)


def ago(value: datetime | None, now: datetime) -> Markup | str:
    """`3 min ago`, with the time itself for machines and on hover."""
    if value is None:
        return "never"
    value = value.astimezone(UTC)
    template = Markup('<time datetime="{}" title="{}">{}</time>')
    title = f"{value:%d %b %Y, %H:%M:%S} UTC"
    return template.format(value.isoformat(), title, _since(now - value))


def _since(age: timedelta) -> str:
    if age < _MINUTE:
        return "just now"
    if age < _HOUR:
        return f"{age // _MINUTE} min ago"
    if age < _DAY:
        return f"{age // _HOUR} h ago"
    return f"{age // _DAY} d ago"
