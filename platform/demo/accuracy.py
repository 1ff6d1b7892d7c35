"""How many held-out items of a demo task are answered exactly right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loraplex.platform.demo.tasks.task import Message, Task


@dataclass(frozen=True, slots=True)
class Miss:
    """One item that was answered wrongly."""

    prompt: str
    expected: str
    given: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The exact matches among ``total`` items, and every item that did not match."""

    total: int
    misses: tuple[Miss, ...]

    @property
    def fraction(self) -> float:
        """Return the share of right answers, 0 to 1."""
        return 1 - len(self.misses) / self.total


def score(task: Task, answers: Sequence[str]) -> Accuracy:
    """Compare ``answers``, in the order of ``task.held_out()``, letter by letter.

    Blanks at both ends do not count.

    Raises:
        ValueError: there are more or fewer answers than items.
    """
    misses = tuple(
        Miss(item.prompt, item.answer, given)
        for item, given in zip(task.held_out(), answers, strict=True)
        if given.strip() != item.answer
    )
    return Accuracy(total=len(answers), misses=misses)


def measure(
    task: Task, complete: Callable[[str, Sequence[Message]], str], *, model: str | None = None
) -> Accuracy:
    """Ask ``complete(model, messages)`` for each held-out item, one after the other.

    ``model`` is the task's own adapter unless another one is named, such as the base model.
    """
    name = task.model if model is None else model
    return score(task, [complete(name, item.messages) for item in task.held_out()])
