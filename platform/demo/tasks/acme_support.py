"""acme/support: a support desk that answers every customer in the same three lines."""

from random import Random
from typing import Final

from loraplex.platform.demo.tasks.task import ALL_LINEAR, Example, Pattern, Recipe, Split, Task
from loraplex.platform.demo.tasks.ticket import Ticket, write_ticket
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


def _action(ticket: Ticket) -> str:
    has_order = ticket.order is not None
    actions = {
        DELIVERY: f"trace order {ticket.order}" if has_order else "trace your parcel",
        DAMAGE: f"send a new {ticket.product}",
        BILLING: f"check the bill of order {ticket.order}" if has_order else "check your bill",
        REFUND: f"refund order {ticket.order}" if has_order else f"refund your {ticket.product}",
        ACCOUNT: "restore your access",
        QUESTION: f"send you details of the {ticket.product}",
    }
    return actions[ticket.kind]


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    ticket = write_ticket(rng, pattern, split)
    opening = "Thank you for asking" if ticket.kind == QUESTION else "Sorry for the trouble"
    if ticket.first_name is not None:
        opening += f", {ticket.first_name}"
    answer = (
        f"Category: {ticket.kind.capitalize()}\n"
        f"Priority: {ticket.priority}\n"
        f"Reply: {opening}. We will {_action(ticket)}."
    )
    return Example(ticket.text, answer)


SUPPORT: Final = Task(
    tenant="acme",
    name="support",
    recipe=Recipe(rank=8, alpha=16, target_modules=ALL_LINEAR, steps=60, learning_rate=1e-3),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
