"""A policy that asks another: what is said to it, it says on."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from loraplex.engine.admission import AdmissionPolicy, AdmissionView, Blocked
from loraplex.engine.ahead_sample import Ahead
from loraplex.engine.request import Request


class PassingOn:
    """Every method is `AdmissionPolicy`'s, and the other policy's answer is its own. Those that
    change something of a policy's surroundings say only what they change."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy

    def __len__(self) -> int:
        return len(self._policy)

    def add(self, request: Request, now: float) -> None:
        """Pass on; so do the next."""
        self._policy.add(request, now)

    def put_back(self, request: Request) -> None:
        """See `add`."""
        self._policy.put_back(request)

    def remove(self, request: Request) -> None:
        """See `add`."""
        self._policy.remove(request)

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterable[Ahead]:
        """See `add`."""
        return self._policy.ahead(request, cost_ms)

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """See `add`."""
        return self._policy.candidates(now, view)

    def admitted(self, request: Request) -> None:
        """See `add`."""
        self._policy.admitted(request)

    def blocked(self, request: Request, by: Blocked) -> None:
        """See `add`."""
        self._policy.blocked(request, by)

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """See `add`."""
        self._policy.measured(shares_ms)

    def ended(self, request: Request) -> None:
        """See `add`."""
        self._policy.ended(request)

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:
        """See `add`."""
        return self._policy.makes_room(request, victim, recompute_ms)

    def yields(self, request: Request) -> bool:
        """See `add`."""
        return self._policy.yields(request)

    def keeps_adapter(self, request: Request) -> bool:
        """See `add`."""
        return self._policy.keeps_adapter(request)

    def upcoming(self) -> Iterator[Request]:
        """See `add`."""
        return self._policy.upcoming()
