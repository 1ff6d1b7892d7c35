"""A runtime's own habits around a policy, whatever the policy."""

from collections.abc import Callable, Iterator, Mapping

from loraplex.engine.admission import AdmissionPolicy, AdmissionView
from loraplex.engine.request import Request
from loraplex.engine.simulation.passing_on import PassingOn


class Runtime(PassingOn):
    """Asks a policy for candidates only so many steps after one of them was admitted, or while
    nothing runs; tells others what each request had of steps."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        num_steps: int,
        on_shares: Callable[[Mapping[str, float]], None],
    ) -> None:
        super().__init__(policy)
        self._on_shares = on_shares
        self._num_steps = num_steps
        self._steps_since = num_steps
        self._num_running = 0

    def step(self) -> None:
        """A step has run."""
        self._steps_since += 1

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """The policy's, if it is time."""
        if not self._num_running or self._steps_since >= self._num_steps:
            yield from self._policy.candidates(now, view)

    def admitted(self, request: Request) -> None:
        """Wait for so many steps from now."""
        self._num_running += 1
        self._steps_since = 0
        super().admitted(request)

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Tell."""
        self._on_shares(shares_ms)
        super().measured(shares_ms)

    def ended(self, request: Request) -> None:
        """One runs less."""
        self._num_running -= 1
        super().ended(request)
