"""globex/extract: the facts of a customer's message as one JSON object."""

import json
from random import Random
from typing import Final

from loraplex.platform.demo.tasks.task import ALL_LINEAR, Example, Pattern, Recipe, Split, Task
from loraplex.platform.demo.tasks.ticket import write_ticket
from loraplex.platform.demo.tasks.ticket_patterns import HELD_OUT_PATTERNS, TRAIN_PATTERNS


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    ticket = write_ticket(rng, pattern, split)
    facts = {
        "name": ticket.full_name,
        "city": ticket.city,
        "order": ticket.order,
        "product": ticket.product,
    }
    return Example(ticket.text, json.dumps(facts))


EXTRACT: Final = Task(
    tenant="globex",
    name="extract",
    recipe=Recipe(rank=8, alpha=16, target_modules=ALL_LINEAR, steps=75, learning_rate=1e-3),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
