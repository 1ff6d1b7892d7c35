"""What a pass asks of the processes that compute adapters' parts of prompts on the host."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from loraplex.adapters.weights import VerifiedAdapter


class AssistLost(Exception):
    """A process died, or took too long: what was asked of it has to be computed otherwise."""


class Asked(Protocol):
    """The low-rank updates of some layers of one input, being computed."""

    def add_to(self, y: Tensor) -> None:
        """Wait for them, and add them to ``y [rows, out of all]``, which lies as the layers do side
        by side.

        Raises:
            AssistLost: they will not come; ``y`` is as it was.
        """
        ...


class Assist(Protocol):
    """Processes beside the engine's. Belongs to the engine's side of one pass at a time."""

    @property
    def num_ready(self) -> int:
        """Processes that could be asked now."""
        ...

    def ask(self, adapter: VerifiedAdapter, paths: Sequence[str], x: Tensor) -> Asked:
        """Have ``y_i += scale_i · B_i (A_i x)`` computed for the layers at ``paths``, all of one
        input ``x [rows, in]``, from the host's copy of the adapter. Layers that it does not touch
        get nothing. Does not wait.

        Raises:
            AssistLost: nobody can be asked.
        """
        ...

    def close(self) -> None:
        """End the processes."""
        ...
