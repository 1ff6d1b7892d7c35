"""Customer messages of a web shop, which several tasks answer each in its own way."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from loraplex.platform.demo.tasks.task import Pattern, Split
from loraplex.platform.demo.tasks.ticket_words import HELD_OUT_WORDS, TRAIN_WORDS, TicketWords

HIGH: Final = "high"
NORMAL: Final = "normal"
LOW: Final = "low"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A customer's message and what it says; ``None`` is what it does not say."""

    text: str
    kind: str
    priority: str
    first_name: str | None
    full_name: str | None
    city: str | None
    order: int | None
    product: str | None


_WORDS: Final[Mapping[Split, TicketWords]] = MappingProxyType(
    {Split.TRAIN: TRAIN_WORDS, Split.HELD_OUT: HELD_OUT_WORDS}
)


def write_ticket(rng: Random, pattern: Pattern, split: Split) -> Ticket:
    """Write the message that ``pattern`` states, in a frame of the split's own wording."""
    words = _WORDS[split]
    priority = rng.choice((HIGH, NORMAL, LOW))
    frame = rng.choice(rng.choice(words.frames_by_content))
    ending = rng.choice(words.endings[priority])
    first_name = rng.choice(words.first_names)
    full_name = f"{first_name} {rng.choice(words.last_names)}"
    city = rng.choice(words.cities)
    order = rng.randrange(10_000, 100_000)
    product = rng.choice(words.products)
    whole = frame.replace("{body}", f"{pattern.text} {ending}".strip())
    return Ticket(
        text=whole.format(name=full_name, city=city, order=order, product=product),
        kind=pattern.kind,
        priority=priority,
        first_name=first_name if "{name}" in whole else None,
        full_name=full_name if "{name}" in whole else None,
        city=city if "{city}" in whole else None,
        order=order if "{order}" in whole else None,
        product=product if "{product}" in whole else None,
    )
