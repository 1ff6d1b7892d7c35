"""initech/commit: a note on a change as type and scope of a Conventional Commit, `fix(auth)`.

The form is that of https://www.conventionalcommits.org/en/v1.0.0/.
"""

from random import Random
from typing import Final

from loraplex.platform.demo.tasks.commit_patterns import (
    HELD_OUT_PARTS,
    HELD_OUT_PATTERNS,
    TRAIN_PARTS,
    TRAIN_PATTERNS,
)
from loraplex.platform.demo.tasks.task import Example, Pattern, Recipe, Split, Task


def _fill(rng: Random, pattern: Pattern, split: Split) -> Example:
    parts = TRAIN_PARTS if split is Split.TRAIN else HELD_OUT_PARTS
    scope = rng.choice(sorted(parts))
    note = pattern.text.format(part=rng.choice(parts[scope]))
    return Example(note, f"{pattern.kind}({scope})")


COMMIT: Final = Task(
    tenant="initech",
    name="commit",
    recipe=Recipe(
        rank=32,
        alpha=16,
        target_modules=("v_proj",),
        steps=80,
        learning_rate=1e-3,
        batch_size=16,
        use_rslora=True,
    ),
    train_patterns=TRAIN_PATTERNS,
    held_out_patterns=HELD_OUT_PATTERNS,
    fill=_fill,
)
