"""globex/sql: a question about customers and orders as one SQLite query."""

from random import Random
from typing import Final

from loraplex.platform.demo.tasks.sql_patterns import HELD_OUT_PATTERNS, QUERIES, TRAIN_PATTERNS
from loraplex.platform.demo.tasks.task import Example, Pattern, Recipe, Split, Task
from loraplex.platform.demo.tasks.ticket_words import HELD_OUT_WORDS, TRAIN_WORDS

SCHEMA: Final = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER, product TEXT,
    quantity INTEGER, total REAL, status TEXT, year INTEGER
);
"""

_STATUSES: Final = ("open", "paid", "shipped", "returned", "cancelled")


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    words = TRAIN_WORDS if split is Split.TRAIN else HELD_OUT_WORDS
    values = {
        "city": rng.choice(words.cities),
        "name": f"{rng.choice(words.first_names)} {rng.choice(words.last_names)}",
        "product": rng.choice(words.products),
        "status": rng.choice(_STATUSES),
        "year": str(rng.randrange(2005, 2027)),
        "count": str(rng.randrange(2, 100)),
    }
    query = QUERIES[pattern.kind]
    return Example(pattern.text.format_map(values), query.format_map(values))


SQL: Final = Task(
    tenant="globex",
    name="sql",
    recipe=Recipe(
        rank=16,
        alpha=32,
        target_modules=("q_proj", "v_proj", "o_proj"),
        steps=80,
        learning_rate=1e-3,
    ),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
