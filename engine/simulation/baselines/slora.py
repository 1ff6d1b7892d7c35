"""Queues of S-LoRA's runtime, on which VTC was measured: first come first served, and VTC.

Both follow https://github.com/Ying1123/VTC-artifact (Apache-2.0) as it was run: a request joins
only if the pool would hold all that run to their ends, for which their output lengths are known;
who heads the queue and does not fit holds up all others.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from loraplex.engine.admission import WAITS_FOR_COPIES, AdmissionView, Blocked
from loraplex.engine.ahead_sample import Ahead
from loraplex.engine.request import Request

_ADAPTER_TOKENS = 32
"""Room in the pool for a client's adapter of rank 8, in tokens."""


@dataclass(frozen=True, slots=True)
class SloraLimits:
    """Settings of the runtime."""

    pool_tokens: int
    batch_tokens: int
    """Prompt tokens that may join in one step."""
    output_tokens: Mapping[str, int]
    """Output length of each request, by its id: the runs were told it."""


class SloraFirstCome:
    """First come, first served, under S-LoRA's rule of who may join."""

    def __init__(self, limits: SloraLimits) -> None:
        self._limits = limits
        self._running: dict[str, Request] = {}
        self._goes_on = True
        self._waiting: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002  of the protocol
        """Take a request that has just arrived."""
        self._waiting[request.key] = request

    def put_back(self, request: Request) -> None:
        """Take a request back that was pushed out, before all others."""
        self._waiting[request.key] = request
        self._waiting.move_to_end(request.key, last=False)

    def remove(self, request: Request) -> None:
        """Forget a request that ended while it waited."""
        del self._waiting[request.key]

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterable[Ahead]:  # noqa: ARG002  of the protocol
        """Nobody asks: none of its requests has a deadline."""
        return ()

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:  # noqa: ARG002  of the protocol
        """Heads of the queue, while what would run fits the pool to its end."""
        self._goes_on = True
        joined = 0
        for request in self.heads():
            joined += request.num_prompt_tokens
            if joined > self._limits.batch_tokens or not self._fits_to_the_end(request):
                return
            yield request
            if not self._goes_on:
                return

    def heads(self) -> Iterable[Request]:
        """Who is next, again and again."""
        return list(self._waiting.values())

    def admitted(self, request: Request) -> None:
        """It runs."""
        self.remove(request)
        self._running[request.key] = request

    def blocked(self, request: Request, by: Blocked) -> None:  # noqa: ARG002  of the protocol
        """Stop, unless it is for a load."""
        self._goes_on = by in WAITS_FOR_COPIES

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Time is nothing to it."""

    def ended(self, request: Request) -> None:
        """It runs no more."""
        del self._running[request.key]

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:  # noqa: ARG002  of the protocol
        """Never needed: room for all was reserved."""
        return True

    def yields(self, request: Request) -> bool:  # noqa: ARG002  of the protocol
        """Nobody does."""
        return False

    def keeps_adapter(self, request: Request) -> bool:  # noqa: ARG002  of the protocol
        """None does."""
        return False

    def upcoming(self) -> Iterator[Request]:
        """In the order of arrival."""
        yield from self._waiting.values()

    def _fits_to_the_end(self, request: Request) -> bool:
        """True if at no time, as requests end one by one, more than the pool would be held."""
        outputs = self._limits.output_tokens
        tenants = {request.submission.submit.tenant}
        sizes = [(outputs[request.submission.request_id] - 1, request.num_prompt_tokens + 1)]
        for other in self._running.values():
            tenants.add(other.submission.submit.tenant)
            left = outputs[other.submission.request_id] - other.num_output_tokens - 1
            sizes.append((left, other.num_tokens))
        sizes.sort(reverse=True)
        held = most = 0
        for count, (left, has) in enumerate(sizes, 1):
            held += has
            most = max(most, held + left * count)
        return most < self._limits.pool_tokens - _ADAPTER_TOKENS * len(tenants)


class VirtualTokenCounter(SloraFirstCome):
    """VTC (https://arxiv.org/abs/2401.00588): the tenant with the smallest counter is next.

    Prompt tokens count 1 at admission, output tokens 2 as decoded, over the tenant's weight. A
    tenant that comes to wait is lifted to the smallest counter of those that wait.
    """

    def __init__(
        self, limits: SloraLimits, prompt_price: float = 1.0, output_price: float = 2.0
    ) -> None:
        super().__init__(limits)
        self._prompt_price = prompt_price
        self._output_price = output_price
        self._queues: dict[str, deque[Request]] = {}
        self._loading: set[str] = set()
        self._charged: dict[str, int] = {}
        """Output tokens of running requests that are charged."""
        self.counters: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002  of the protocol
        """Take a request, and lift its tenant if none of its others waits."""
        self._charge_outputs()
        tenant = request.submission.submit.tenant
        queue = self._queues.setdefault(tenant, deque())
        counter = self.counters.setdefault(tenant, 0.0)
        waiting = [self.counters[other] for other, has in self._queues.items() if has]
        if not queue and waiting:
            self.counters[tenant] = max(counter, min(waiting))
        queue.append(request)

    def put_back(self, request: Request) -> None:
        """Take a request back that was pushed out, before its tenant's others."""
        self._queues[request.submission.submit.tenant].appendleft(request)

    def remove(self, request: Request) -> None:
        """Forget a request."""
        self._queues[request.submission.submit.tenant].remove(request)

    def heads(self) -> Iterator[Request]:
        """The first request of the tenant with the smallest counter."""
        self._loading.clear()
        self._charge_outputs()
        while True:
            waiting = [t for t, has in self._queues.items() if has and t not in self._loading]
            if not waiting:
                return
            yield self._queues[min(waiting, key=self.counters.__getitem__)][0]

    def admitted(self, request: Request) -> None:
        """Charge its prompt."""
        super().admitted(request)
        self._charged[request.key] = max(0, request.num_output_tokens - 1)
        self._charge(request, self._prompt_price * request.num_prompt_tokens)

    def blocked(self, request: Request, by: Blocked) -> None:
        """Pass over its tenant while its adapter loads; otherwise stop."""
        super().blocked(request, by)
        self._loading.add(request.submission.submit.tenant)

    def ended(self, request: Request) -> None:
        """Charge what is not charged yet."""
        self._charge_output(request)
        del self._charged[request.key]
        super().ended(request)

    def upcoming(self) -> Iterator[Request]:
        """First requests, those of the smallest counters first."""
        for tenant in sorted(self._queues, key=self.counters.__getitem__):
            yield from self._queues[tenant]

    def _charge_outputs(self) -> None:
        for request in self._running.values():
            self._charge_output(request)

    def _charge_output(self, request: Request) -> None:
        """Charge the tokens that were decoded; the first comes with the prompt."""
        decoded = max(0, request.num_output_tokens - 1)
        self._charge(request, self._output_price * (decoded - self._charged[request.key]))
        self._charged[request.key] = decoded

    def _charge(self, request: Request, price: float) -> None:
        submit = request.submission.submit
        self.counters[submit.tenant] += price / submit.weight
