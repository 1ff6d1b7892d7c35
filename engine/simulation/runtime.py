"""A runtime's own habits around a policy, whatever the policy."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from loraplex.engine.admission import AdmissionPolicy, AdmissionView, Blocked
from loraplex.engine.ahead_sample import Ahead
from loraplex.engine.request import Request


class Runtime:
    """Asks a policy for candidates only so many steps after one of them was admitted, or while
    nothing runs; tells others what each request had of steps."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        num_steps: int,
        on_shares: Callable[[Mapping[str, float]], None],
    ) -> None:
        self._policy = policy
        self._on_shares = on_shares
        self._num_steps = num_steps
        self._steps_since = num_steps
        self._num_running = 0

    def __len__(self) -> int:
        return len(self._policy)

    def step(self) -> None:
        """A step has run."""
        self._steps_since += 1

    def add(self, request: Request, now: float) -> None:
        """See `AdmissionPolicy`; so with all others."""
        self._policy.add(request, now)

    def put_back(self, request: Request) -> None:
        """Pass on."""
        self._policy.put_back(request)

    def remove(self, request: Request) -> None:
        """Pass on."""
        self._policy.remove(request)

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterable[Ahead]:
        """Pass on."""
        return self._policy.ahead(request, cost_ms)

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """The policy's, if it is time."""
        if not self._num_running or self._steps_since >= self._num_steps:
            yield from self._policy.candidates(now, view)

    def admitted(self, request: Request) -> None:
        """Pass on, and wait for so many steps from now."""
        self._num_running += 1
        self._steps_since = 0
        self._policy.admitted(request)

    def blocked(self, request: Request, by: Blocked) -> None:
        """Pass on."""
        self._policy.blocked(request, by)

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Pass on, and tell."""
        self._on_shares(shares_ms)
        self._policy.measured(shares_ms)

    def ended(self, request: Request) -> None:
        """Pass on."""
        self._num_running -= 1
        self._policy.ended(request)

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:
        """Pass on."""
        return self._policy.makes_room(request, victim, recompute_ms)

    def yields(self, request: Request) -> bool:
        """Pass on."""
        return self._policy.yields(request)

    def keeps_adapter(self, request: Request) -> bool:
        """Pass on."""
        return self._policy.keeps_adapter(request)

    def upcoming(self) -> Iterator[Request]:
        """Pass on."""
        return self._policy.upcoming()
