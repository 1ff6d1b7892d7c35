"""acme/triage: the one label that says which team takes a customer's message."""

from random import Random
from typing import Final

from loraplex.platform.demo.tasks.task import ATTENTION, Example, Pattern, Recipe, Split, Task
from loraplex.platform.demo.tasks.ticket import write_ticket
from loraplex.platform.demo.tasks.ticket_patterns import HELD_OUT_PATTERNS, TRAIN_PATTERNS


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    ticket = write_ticket(rng, pattern, split)
    return Example(ticket.text, ticket.kind)


TRIAGE: Final = Task(
    tenant="acme",
    name="triage",
    recipe=Recipe(rank=4, alpha=8, target_modules=ATTENTION, steps=80, learning_rate=2e-3),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
