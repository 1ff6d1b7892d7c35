"""Fair shares of the machine for tenants, with adapters in mind: the policy of a worker."""

from collections.abc import Callable, Iterator, Mapping

from loraplex.engine.admission import AdmissionView, Blocked
from loraplex.engine.ahead_sample import Ahead, sampled
from loraplex.engine.fair_queue import FairQueue
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.request import Request


class FairAdmission:
    """Tenants by deficit (`FairQueue`), requests of one tenant by tier, program and age
    (`TenantQueue`).

    The tier `flex` is a queue of its own, with deficits of its own. It is asked when no request of
    the other tiers could start whatever were free, and what it runs gives way to them.
    """

    def __init__(self, settings: FairSettings) -> None:
        self._main = FairQueue(settings)
        self._flex = FairQueue(settings)

    @property
    def main(self) -> FairQueue:
        """The tiers `priority` and `default`."""
        return self._main

    @property
    def flex(self) -> FairQueue:
        """The tier `flex`."""
        return self._flex

    def __len__(self) -> int:
        return len(self._main) + len(self._flex)

    def add(self, request: Request, now: float) -> None:
        """Take a request that arrived at `now`."""
        self._queue(request).add(request, now)

    def put_back(self, request: Request) -> None:
        """Take a request that lost its KV blocks; it goes before its tenant's others."""
        self._queue(request).put_back(request)

    def remove(self, request: Request) -> None:
        """Forget a request that ended while it waited."""
        self._queue(request).remove(request)

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterator[Ahead]:
        """See `FairQueue.ahead`; `flex` comes after all others."""
        if self.yields(request):
            yield from sampled(list(self._main.requests()))
        yield from self._queue(request).ahead(request, cost_ms)

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """See `AdmissionPolicy.candidates`."""
        yield from self._main.candidates(now, view)
        if self._main.is_idle(view):
            yield from self._flex.candidates(now, view)

    def admitted(self, request: Request) -> None:
        """The candidate runs."""
        self._queue(request).admitted(request)

    def blocked(self, request: Request, by: Blocked) -> None:
        """The candidate could not start."""
        self._queue(request).blocked(request, by)

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Charge what requests used beyond their charges."""
        self._main.measured(shares_ms)
        self._flex.measured(shares_ms)

    def ended(self, request: Request) -> None:
        """Give back what the request did not use."""
        self._queue(request).ended(request)

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:
        """Charge a request for pushing out another; see `FairShare.prepay`."""
        if self.yields(victim) and not self.yields(request):
            return True
        return self._queue(request).makes_room(request, victim, recompute_ms)

    def yields(self, request: Request) -> bool:
        """True for the tier `flex`."""
        return request.submission.submit.service_tier == "flex"

    def keeps_adapter(self, request: Request) -> bool:
        """Those of the main tiers: they are committed. What `flex` has loaded gives way."""
        return not self.yields(request)

    def upcoming(self) -> Iterator[Request]:
        """Of the main tiers: the memory that a prefetch takes is nobody's for `flex` to keep."""
        yield from self._main.upcoming()

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        self._main.check()
        self._flex.check()

    def _queue(self, request: Request) -> FairQueue:
        return self._flex if self.yields(request) else self._main
