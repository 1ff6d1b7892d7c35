"""Waiting requests of many tenants, offered by deficit and by what is there already."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush

from loraplex.adapters.residency import State
from loraplex.engine.admission import WAITS_FOR_ROOM, AdmissionView, Blocked
from loraplex.engine.ahead import ahead_by_share
from loraplex.engine.ahead_sample import Ahead
from loraplex.engine.drain_delay import DrainDelay
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.fairness import FairShare
from loraplex.engine.programs import Programs
from loraplex.engine.request import Request, Status
from loraplex.engine.tenant_queue import TenantQueue
from loraplex.engine.tenant_weights import TenantWeights
from loraplex.engine.waits import WaitClock

_NUM_HEADS = 16
"""Tenants among whose first requests the best is chosen; those that have been eligible longest."""
_MAX_GAP_TENANTS = 64
"""Tenants that are looked at for a request that fills a gap, each time."""
_NUM_AHEAD = 4
"""Requests of one tenant that are told as upcoming."""

_Head = tuple[bool, int, float, str, Request]


class FairQueue:
    """Tenants take turns by deficit. Of those whose turn it has been longest the one goes first
    whose adapter is there already, then the one with the longest cached prefix, then the one whose
    first token is due first.

    Who needs a load is charged when the load starts, is *committed* from then on, and runs before
    all others when its adapter has come; so does who was pushed out by another tenant. A tenant
    whose turn it is, but for whose first request there is too little memory, holds a *reservation*:
    nobody's deficit grows, no load starts, and what runs before it must end before it can start, by
    prediction, and a bounded number of times.
    """

    def __init__(self, settings: FairSettings) -> None:
        self._settings = settings
        self._share = FairShare(settings.quantum_ms, settings.overdraft_ms, self._on_change)
        self._weights = TenantWeights()
        self._tenants: dict[str, TenantQueue] = {}
        self._parked: set[str] = set()
        """Tenants all of whose requests wait for adapters that are on their way: they compete for
        nothing."""
        self._committed: OrderedDict[str, Request] = OrderedDict()
        self._programs = Programs()
        self._reserved: Request | None = None
        self._skips: dict[str, int] = {}
        """Of requests for which memory is being kept: how often others have filled the gap."""
        self._delay = DrainDelay(settings.max_drain_ms)
        self._num_queued = 0
        self._refusal: Blocked | None = None
        self._now = 0.0
        self._view: AdmissionView | None = None

    def __len__(self) -> int:
        return self._num_queued + len(self._committed)

    @property
    def share(self) -> FairShare:
        """The deficits."""
        return self._share

    @property
    def reserved(self) -> Request | None:
        """The request for which memory is being kept."""
        return self._reserved

    def num_skips(self, request: Request) -> int:
        """Requests that were admitted while memory was being kept for this one."""
        return self._skips.get(request.key, 0)

    def is_idle(self, view: AdmissionView) -> bool:
        """True if none of its requests could start, whatever were free: each waits for a load."""
        return len(self._parked) == len(self._tenants) and all(
            view.adapter_state(request) is State.LOADING for request in self._committed.values()
        )

    def requests(self) -> Iterator[Request]:
        """All that wait."""
        yield from self._committed.values()
        for queue in self._tenants.values():
            yield from queue.requests()

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterator[Ahead]:
        """See `AdmissionPolicy.ahead`."""
        return ahead_by_share(request, self._committed, self._tenants, self._share, cost_ms)

    def add(self, request: Request, now: float) -> None:
        """Take a request that arrived at `now`."""
        self._now = now
        self._weights.tell(request.submission.submit)
        queue = self._queue_of(request)
        queue.add(request)
        self._joined(request, queue)

    def put_back(self, request: Request) -> None:
        """Take a request that lost its KV blocks. One that another tenant has paid to push out has
        kept its charge, and runs on before all others."""
        if self._share.is_open(request.key):
            self._share.resume(request.key)
            self._committed[request.key] = request
            self._committed.move_to_end(request.key, last=False)
            return
        queue = self._queue_of(request)
        queue.put_back(request)
        self._joined(request, queue)

    def remove(self, request: Request) -> None:
        """Forget a request that ended while it waited."""
        self._share.forget(request.key)
        if self._committed.pop(request.key, None) is not None:
            self._close(request)
        else:
            self._tenants[request.tenant].remove(request)
            self._left(request.tenant)
        self._unreserve(request)

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """See `AdmissionPolicy.candidates`."""
        self._now, self._view = now, view
        self._delay.begin(now)
        self._uncommit_lost(view)
        self._unpark(view)
        first: Request | None = None
        for request in self._before_all(view):
            yield request
            if self._refusal in {Blocked.SLOTS, Blocked.STEP}:
                return
            if self._refusal in WAITS_FOR_ROOM:
                first = first or request
        if first is None:
            for request in self._in_turn(view):
                yield request
                if self._keeps_memory() and not self._is_put_off(request, view):
                    first = request
                    break
            else:
                yield from self._on_credit(view)
        if first is not None:
            yield from self._gap_fillers(first, view)

    def admitted(self, request: Request) -> None:
        """The candidate runs. The first that uses a prefetched adapter pays for its load."""
        self._refusal = None
        load_ms = self._load_ms(request)
        if self._committed.pop(request.key, None) is None:
            self._charge(request)
        elif self._view is not None:
            self._share.restore(request.key, self._view.restore_ms(request))
        if load_ms:
            self._share.use(request.key, load_ms)
        self._unreserve(request)

    def blocked(self, request: Request, by: Blocked) -> None:
        """The candidate could not start; its load has begun if that is what it needs."""
        self._refusal = by
        if by is not Blocked.LOADING:
            return
        assert self._view is not None
        if request.key not in self._committed:
            self._charge(request)
            self._committed[request.key] = request
        self._share.use(request.key, self._load_ms(request))
        self._unreserve(request)

    def upcoming(self) -> Iterator[Request]:
        """Eligible tenants' requests, then those of tenants that will be next; a few of each."""
        for tenant in self._share.next_tenants(_NUM_HEADS):
            if (queue := self._tenants.get(tenant)) is not None:
                yield from queue.oldest(_NUM_AHEAD)

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Charge this queue's requests what they used beyond their charges."""
        self._share.use_all(shares_ms)

    def ended(self, request: Request) -> None:
        """An admitted request ended or lost its KV blocks."""
        is_finished = request.status is Status.FINISHED
        if is_finished:
            self._share.forget(request.key)
        if is_finished or not self._share.is_prepaid(request.key):
            self._close(request)

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:
        """Charge a request for pushing out another tenant's. Its own pay on their return."""
        if request.tenant == victim.tenant:
            return True
        return self._share.prepay(request.key, victim.key, recompute_ms)

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        self._share.check()
        assert self._num_queued == sum(map(len, self._tenants.values()))
        assert all(self._tenants.values()), "a tenant waits with nothing"
        assert self._parked <= self._tenants.keys()
        assert all(self._share.is_open(key) for key in self._committed)

    # What follows is what the tests' mutants break.

    def _load_ms(self, request: Request) -> float:
        """What starting its load costs."""
        assert self._view is not None
        return self._view.load_ms(request)

    def _cost_ms(self, request: Request, view: AdmissionView) -> float:
        """What admitting it costs, the load included."""
        return view.predicted_ms(request)

    def _keeps_memory(self) -> bool:
        """True if nobody may go on past the candidate that was just refused."""
        return self._refusal in {Blocked.KV_BLOCKS, Blocked.ADAPTER_MEMORY}

    def _before_all(self, view: AdmissionView) -> Iterator[Request]:
        """Requests that were charged or held a reservation before this step."""
        is_kept = False
        for request in list(self._committed.values()):
            if view.adapter_state(request) is not State.LOADING:
                yield request
                is_kept |= self._refusal in WAITS_FOR_ROOM
        if self._reserved is None:
            return
        tenant = self._reserved.tenant
        may_go = self._tenants[tenant].may_overtake(self._reserved, view.adapter_state)
        if not may_go or not self._share.is_eligible(tenant):
            # Its tenant's oldest must wait no longer, or it has used more than was predicted.
            self._unreserve(self._reserved)
        elif self._share.num_open < self._settings.max_open:
            state = view.adapter_state(self._reserved)
            # No load starts while memory is kept for those that came before it.
            if state is State.RESIDENT or (state is State.ABSENT and not is_kept):
                yield self._reserved

    def _in_turn(self, view: AdmissionView) -> Iterator[Request]:
        """First requests of eligible tenants; deficits grow when there is none."""
        heads: list[_Head] = []
        eligible = iter(self._share.eligible)
        while self._share.num_open < self._settings.max_open:
            while len(heads) < _NUM_HEADS and (tenant := next(eligible, None)) is not None:
                self._push_head(heads, tenant, view)
            if not heads:
                if not self._share.can_refill:
                    return
                self._share.refill()
                eligible = iter(self._share.eligible)
                continue
            is_absent, *_, tenant, request = heappop(heads)
            if is_absent and self._delay.is_full:
                continue
            yield request
            if self._refusal in {Blocked.SLOTS, Blocked.STEP}:
                return
            # One that could not start stays eligible, which holds refills up.
            if self._refusal not in WAITS_FOR_ROOM and self._share.is_eligible(tenant):
                self._push_head(heads, tenant, view)

    def _is_put_off(self, request: Request, view: AdmissionView) -> bool:
        """True if others are not drained for the candidate that was just refused, yet."""
        return self._refusal is Blocked.ADAPTER_MEMORY and self._delay.puts_off(request, view)

    def _on_credit(self, view: AdmissionView) -> Iterator[Request]:
        """Meanwhile requests on resident adapters, of tenants whose turn it is not; each may use
        about what a drain would cost."""
        if self._refusal in {Blocked.SLOTS, Blocked.STEP}:
            return
        credit_ms = self._delay.longest_ms
        for tenant in self._share.next_tenants(_MAX_GAP_TENANTS):
            while credit_ms and not self._share.is_eligible(tenant) and tenant in self._tenants:
                request = self._tenants[tenant].first(view.adapter_state, resident_only=True)
                if (
                    request is None
                    or not view.fits(request)
                    or self._share.num_open >= self._settings.max_open
                    or self._share.deficit_ms(tenant) - self._cost_ms(request, view) <= -credit_ms
                ):
                    break
                yield request
                if self._refusal is not None:
                    return

    def _gap_fillers(self, first: Request, view: AdmissionView) -> Iterator[Request]:
        """Requests on resident adapters that will have ended before `first` can start, for which
        memory is being kept from now on."""
        if self._reserved is None and first.key not in self._committed:
            self._reserved = first
        wait_ms: float | None = None
        kept = [request for request in (first, self._reserved) if request is not None]
        eligible = self._share.eligible
        others = (tenant for tenant in self._tenants if not self._share.is_eligible(tenant))
        for num_looked_at, tenant in enumerate([*eligible, *others]):
            if (
                num_looked_at == _MAX_GAP_TENANTS
                or any(self.num_skips(each) >= self._settings.max_skips for each in kept)
                or self._share.num_open >= self._settings.max_open
            ):
                return
            queue = self._tenants[tenant]
            is_own = any(tenant == each.tenant for each in kept)
            # What memory is kept for will overtake its tenant's oldest too, if it is another.
            if tenant in self._parked or (is_own and queue.num_skips + 1 >= queue.max_skips):
                continue
            request = queue.first(view.adapter_state, resident_only=True)
            if request is None or request in kept or not view.fits(request):
                continue
            if wait_ms is None:
                wait_ms = view.predicted_wait_ms(first)
            if view.predicted_run_ms(request) > wait_ms or not self._may_fill(request, view):
                continue
            yield request
            if self._refusal in {Blocked.SLOTS, Blocked.STEP}:
                return
            if self._refusal is None:
                self._skips |= {each.key: self.num_skips(each) + 1 for each in kept}

    def _may_fill(self, request: Request, view: AdmissionView) -> bool:
        tenant = request.tenant
        if self._share.is_eligible(tenant):
            return True
        return self._share.may_fill_gap(tenant, self._cost_ms(request, view))

    def _push_head(self, heads: list[_Head], tenant: str, view: AdmissionView) -> None:
        request = self._tenants[tenant].first_known(view.adapter_state, view.adapters_version)
        if request is None:
            self._parked.add(tenant)
            self._share.stop_waiting(tenant)
            return
        is_absent = view.adapter_state(request) is State.ABSENT
        due_s = request.submission.first_token_due_s
        heappush(heads, (is_absent, -view.cached_tokens(request), due_s, tenant, request))

    def _unpark(self, view: AdmissionView) -> None:
        for tenant in sorted(self._parked):
            queue = self._tenants[tenant]
            if queue.first_known(view.adapter_state, view.adapters_version) is not None:
                self._parked.remove(tenant)
                self._share.wait(tenant, queue.weight)

    def _charge(self, request: Request) -> None:
        """It leaves its tenant's queue and is charged for all of it."""
        assert self._view is not None
        tenant, cost_ms = request.tenant, self._cost_ms(request, self._view)
        self._tenants[tenant].take(request)
        self._share.charge(request.key, tenant, cost_ms)
        self._programs.charged(request, cost_ms)
        self._left(tenant)

    def _close(self, request: Request) -> None:
        """Give back what it did not use."""
        self._programs.closed(request, self._share.close(request.key))

    def _uncommit_lost(self, view: AdmissionView) -> None:
        """A charge covers one load. Whose adapter was evicted waits for its tenant's turn again,
        before the tenant's others: one that was pushed out, or of a tier that yields."""
        for request in list(self._committed.values()):
            if view.adapter_state(request) is State.ABSENT or view.load_ms(request) > 0:
                del self._committed[request.key]
                self._close(request)
                self.put_back(request)

    def _unreserve(self, request: Request) -> None:
        self._skips.pop(request.key, None)
        self._delay.forget(request)
        if request is self._reserved:
            self._reserved = None

    def _queue_of(self, request: Request) -> TenantQueue:
        tenant, weight = request.tenant, self._weights.of(request.submission.submit)
        queue = self._tenants.get(tenant)
        if queue is None:
            queue = self._tenants[tenant] = TenantQueue(
                WaitClock(self._now, request.clock.leader),
                self._settings.max_skips,
                lambda program: self._programs.attained_ms(tenant, program),
            )
        queue.weight = weight
        return queue

    def _joined(self, request: Request, queue: TenantQueue) -> None:
        tenant = request.tenant
        self._num_queued += 1
        request.clock.follow(queue.clock, self._now)
        if tenant not in self._parked:
            self._share.wait(tenant, queue.weight)
            self._on_change(tenant, self._share.is_eligible(tenant))

    def _left(self, tenant: str) -> None:
        self._num_queued -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
            self._parked.discard(tenant)
            self._share.stop_waiting(tenant)

    def _on_change(self, tenant: str, eligible: bool) -> None:
        if (queue := self._tenants.get(tenant)) is not None:
            queue.clock.switch(None if eligible else "share", self._now)
