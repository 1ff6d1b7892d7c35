"""acme/support: a support desk that answers every customer in the same three lines."""

from collections.abc import Mapping
from random import Random
from typing import Final

from loraplex.platform.demo.tasks.task import ALL_LINEAR, Example, Pattern, Recipe, Split, Task
from loraplex.platform.demo.tasks.ticket import write_ticket
from loraplex.platform.demo.tasks.ticket_patterns import (
    ACCOUNT,
    BILLING,
    DAMAGE,
    DELIVERY,
    HELD_OUT_PATTERNS,
    QUESTION,
    REFUND,
    TRAIN_PATTERNS,
)

_ACTIONS: Final[Mapping[str, str]] = {
    DELIVERY: "trace your parcel",
    DAMAGE: "send you a replacement",
    BILLING: "check your bill",
    REFUND: "refund your money",
    ACCOUNT: "restore your access",
    QUESTION: "send you the details",
}


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    ticket = write_ticket(rng, pattern, split)
    about = "" if ticket.order is None else f" for order {ticket.order}"
    answer = (
        f"Category: {ticket.kind.capitalize()}\n"
        f"Priority: {ticket.priority}\n"
        f"Reply: Thank you. We will {_ACTIONS[ticket.kind]}{about}."
    )
    return Example(ticket.text, answer)


SUPPORT: Final = Task(
    tenant="acme",
    name="support",
    recipe=Recipe(rank=8, alpha=16, target_modules=ALL_LINEAR, steps=100, learning_rate=1e-3),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
