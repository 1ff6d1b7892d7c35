"""Adapters that are on their way, and who waits for them."""

from collections.abc import Iterable, Set
from itertools import takewhile

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.residency_counts import PrefetchCause, Route
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import Blocked
from loraplex.engine.draft import Draft
from loraplex.engine.request import Request, Status, Submission


class Loads:
    """Starts loads within a budget of bytes in flight, notices that they have ended, and keeps the
    clocks of those who wait.

    One load may always be under way, whatever its size. Prefetches take what loads leave: they
    are no reason for a load to wait.

    A request that runs has a lease on its adapter. One that waits has one from the start of its
    load on, if the policy charged it (`AdmissionPolicy.keeps_adapter`): else another load could
    push out what it has paid for, while it waits for KV blocks. Such requests cannot wait for each
    other: none lacks memory for an adapter any more, so they wait for the ends of loads, and for
    slots and KV blocks, which only running requests hold.
    """

    def __init__(self, residency: Residency, max_bytes: int | None = None) -> None:
        """`max_bytes` is the budget; None takes a quarter of the adapters' memory, since what is on
        its way holds memory that nobody can use."""
        self._residency = residency
        self._max_bytes = residency.capacity_bytes // 4 if max_bytes is None else max_bytes
        self._num_bytes: dict[AdapterKey, int] = {}
        self._prefetched: dict[AdapterKey, int] = {}
        """The same of prefetches that nobody has claimed."""
        self._waited: dict[str, Route] = {}
        """By request that waits: how it came to wait for a load, if it did."""
        self._kept: set[str] = set()
        """Requests that wait and have a lease."""
        self._seen_version = -1
        """Of the residency, when it was last looked who has arrived."""

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that are being copied beside the steps."""
        return self._load_bytes + sum(self._prefetched.values())

    @property
    def keys(self) -> tuple[AdapterKey, ...]:
        """Adapters whose loads were not noted to have ended."""
        return (*self._num_bytes, *self._prefetched)

    @property
    def kept(self) -> Set[str]:
        """`Request.key` of those that wait and have a lease on their adapters."""
        return self._kept

    def bytes_ahead(self, key: AdapterKey) -> int:
        """Bytes of other adapters that come before those of one that is on its way."""
        ahead = takewhile(lambda other: other != key, self.keys)
        entries = map(self._residency.get, ahead)
        return sum(entry.left_bytes for entry in entries if entry is not None)

    @property
    def left_bytes(self) -> int:
        """Bytes of loads that have not come; prefetches are none, since they give way."""
        entries = map(self._residency.get, self._num_bytes)
        return sum(entry.left_bytes for entry in entries if entry is not None)

    @property
    def spare_bytes(self) -> int:
        """Bytes of prefetches that may be started now."""
        return max(0, self._max_bytes - self.bytes_in_flight)

    def arrive(self, submission: Submission) -> None:
        """A request has come, which asks for its adapter once, whatever its choices."""
        if submission.adapter is not None:
            self._residency.demand.arrived(submission.adapter, submission.adapter_bytes)

    def join(self, request: Request, now: float) -> None:
        """A choice begins to wait: for a load, if one for its adapter is under way."""
        if request.adapter is not None:
            self._residency.demand.waits(request.adapter, request.submission.adapter_bytes)
        if request.adapter in self._num_bytes:
            self._waited[request.key] = "join"
            request.clock.switch("load", now)

    def leave(self, request: Request) -> None:
        """It waits no more."""
        key = request.adapter
        if key is None:
            return
        self._waited.pop(request.key, None)
        if request.key in self._kept:
            self._kept.remove(request.key)
            if self._residency.state(key) is not State.ABSENT:  # its load may have failed
                self._residency.release(key)
        self._residency.waits_no_more(key)

    def keep(self, request: Request) -> None:
        """Its adapter, which is on its way, stays until it runs or ends."""
        assert request.adapter is not None
        if request.key not in self._kept:
            self._residency.hold(request.adapter)
            self._kept.add(request.key)

    def start(
        self, request: Request, requests: Iterable[Request], draft: Draft, now: float
    ) -> Route | None:
        """It runs from now on, on an adapter that is there, or on its way and open, which is
        claimed then; `requests` are `demand`'s. Return how it came to its adapter; None for the
        base model."""
        key = request.adapter
        if key is None:
            return None
        is_there = self._residency.state(key) is State.RESIDENT
        is_first = self._residency.is_unclaimed(key)
        route = self._waited.get(request.key, "prefetch" if is_first else "resident")
        if not is_there:
            self.demand(request, requests, draft, now)
        self._residency.acquire(key)
        self.leave(request)
        return route

    def stop(self, request: Request) -> None:
        """It runs no more."""
        key = request.adapter
        if key is not None and self._residency.state(key) is not State.ABSENT:  # as in `leave`
            self._residency.release(key)

    def refusal(self, request: Request) -> Blocked:
        """What a request lacks whose adapter is absent, or nobody's yet; LOADING for a load that
        may start."""
        key, num_bytes = request.adapter, request.submission.adapter_bytes
        assert key is not None
        if self._residency.is_unclaimed(key):
            return Blocked.LOADING
        if not self._residency.can_load(num_bytes, key.tenant):
            return Blocked.ADAPTER_MEMORY
        in_flight = self._load_bytes
        if in_flight and in_flight + num_bytes > self._max_bytes:
            return Blocked.TRANSFERS
        return Blocked.LOADING

    def demand(
        self, request: Request, requests: Iterable[Request], draft: Draft, now: float
    ) -> None:
        """Start the load that a request needs, or claim its prefetch; nothing if it is under way.
        `requests` are all that are open on its adapter."""
        key = request.adapter
        assert key is not None
        if key in self._num_bytes:
            return
        route: Route = "join"
        if key in self._prefetched:
            self._residency.claim(key)
            self._num_bytes[key] = self._prefetched.pop(key)
            draft.claims.append(key)
        else:
            num_bytes = request.submission.adapter_bytes
            self.evicted(self._residency.start_load(key, num_bytes), draft)
            self._num_bytes[key] = num_bytes
            draft.loads.append(key)
            route = "wait"
        for other in requests:
            if other.adapter == key and other.status is Status.WAITING:
                self._waited[other.key] = "join"
                other.clock.switch("load", now)
        self._waited[request.key] = route

    def prefetch(
        self, key: AdapterKey, num_bytes: int, draft: Draft, cause: PrefetchCause = "queue"
    ) -> None:
        """Start to load what nobody needs yet."""
        start = self._residency.start_load
        self.evicted(start(key, num_bytes, is_prefetch=True, cause=cause), draft)
        self._prefetched[key] = num_bytes
        draft.prefetches.append(key)

    def order(self, draft: Draft) -> None:
        """Tell what follows for memory from all that has been planned, and from drops before."""
        self.evicted(self._residency.take_freed(), draft)
        draft.on_host = self._residency.host.take_orders()

    def note_ended(self, requests: Iterable[Request], now: float) -> bool:
        """Forget loads that have ended; False if there were none. Once before each plan; `requests`
        are all that are open on `keys`."""
        if self._seen_version == self._residency.version:
            return False  # nothing has arrived, failed or been started since
        self._seen_version = self._residency.version
        if not self._num_bytes and not self._prefetched:
            return False
        state = self._residency.state
        in_flight = [*self._num_bytes, *self._prefetched]
        ended = {key for key in in_flight if state(key) is not State.LOADING}
        for key in ended:
            self._num_bytes.pop(key, None)
            self._prefetched.pop(key, None)
            if state(key) is State.ABSENT:
                self._residency.demand.forget(key)  # it failed, and is not prefetched again
        if ended:
            for request in requests:
                if request.adapter in ended:
                    request.clock.switch(None, now)
        return bool(ended)

    def check(self, waiting: list[Request], num_running: int) -> None:
        """Assert the conservation laws; `waiting` are all requests that wait, `num_running` those
        on adapters that run."""
        for key in (*self._num_bytes, *self._prefetched):
            if self._residency.state(key) is State.LOADING:
                assert self._residency.is_unclaimed(key) is (key in self._prefetched)
        # Loads have filled the budget after prefetches had, at worst.
        largest = max(self._num_bytes.values(), default=0)
        largest_prefetch = max(self._prefetched.values(), default=0)
        at_most = max(self._max_bytes, largest_prefetch) + max(self._max_bytes, largest)
        assert self.bytes_in_flight <= at_most, "the budget is exceeded"
        assert self._waited.keys() <= {request.key for request in waiting}
        num_waiting = sum(request.adapter is not None for request in waiting)
        assert self._residency.demand.num_waiting == num_waiting, "who waits is miscounted"
        assert self._kept <= {request.key for request in waiting}
        num_leases = self._residency.num_leases
        assert num_leases == num_running + len(self._kept), "a lease is lost, or nobody's"

    def evicted(self, evicted: tuple[AdapterKey, ...], draft: Draft) -> None:
        """These have lost their memory, on their way too."""
        draft.evictions += evicted
        for key in evicted:
            self._prefetched.pop(key, None)

    @property
    def _load_bytes(self) -> int:
        return sum(self._num_bytes.values())
