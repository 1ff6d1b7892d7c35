"""initech/calendar: a message about an event as one calendar line, `date time event`."""

from calendar import monthrange
from datetime import date, timedelta
from random import Random
from types import MappingProxyType
from typing import Final

from loraplex.platform.demo.tasks.calendar_patterns import (
    HELD_OUT_EVENTS,
    HELD_OUT_PATTERNS,
    TIMED,
    TRAIN_EVENTS,
    TRAIN_PATTERNS,
)
from loraplex.platform.demo.tasks.task import Example, Pattern, Recipe, Split, Task
from loraplex.platform.demo.tasks.ticket_words import HELD_OUT_WORDS, TRAIN_WORDS

_FIRST_DAY: Final = date(2020, 1, 1)
_NUM_DAYS: Final = 5844  # 16 years, so that all values of the year's last digit are seen
_HARD_DAYS: Final = (*range(1, 10), 10, 20, 30)
_SUFFIXES: Final = MappingProxyType(
    {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
)


def _spellings(day: date) -> tuple[str, ...]:
    """The ways in which people write a date; the month is always a word."""
    nth = f"{day.day}{_SUFFIXES.get(day.day, 'th')}"
    return (
        f"{day.day} {day:%B} {day.year}",
        f"{day:%B} {day.day}, {day.year}",
        f"{day:%A}, {day.day} {day:%B} {day.year}",
        f"the {nth} of {day:%B} {day.year}",
        f"{day:%B} {nth}, {day.year}",
        f"{day.day} {day:%b} {day.year}",
    )


def _day(rng: Random, split: Split) -> date:
    day = _FIRST_DAY + timedelta(days=rng.randrange(_NUM_DAYS))
    # Where a digit is to be put before a day, or stands behind it as a zero, is what is hard.
    if split is Split.TRAIN and rng.random() < 0.5:
        day = day.replace(day=min(rng.choice(_HARD_DAYS), monthrange(day.year, day.month)[1]))
    return day


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    words = TRAIN_WORDS if split is Split.TRAIN else HELD_OUT_WORDS
    event = rng.choice(TRAIN_EVENTS if split is Split.TRAIN else HELD_OUT_EVENTS)
    day = _day(rng, split)
    hour, minute = rng.randrange(7, 22), rng.randrange(0, 60, 5)
    prompt = pattern.text.format(
        event=event,
        date=rng.choice(_spellings(day)),
        time=f"{hour}:{minute:02}",
        name=rng.choice(words.first_names),
        city=rng.choice(words.cities),
        number=rng.randrange(2, 100),
    )
    time = f"{hour:02}:{minute:02}" if pattern.kind == TIMED else "all-day"
    return Example(prompt, f"{day.isoformat()} {time} {event}")


CALENDAR: Final = Task(
    tenant="initech",
    name="calendar",
    recipe=Recipe(
        rank=4,
        alpha=8,
        target_modules=("q_proj", "v_proj"),
        steps=100,
        learning_rate=2e-3,
        rank_pattern=(("v_proj", 8),),
        alpha_pattern=(("v_proj", 16),),
    ),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
