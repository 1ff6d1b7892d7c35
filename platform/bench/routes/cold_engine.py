"""One engine, and requests on adapters that the host has and the device has not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.core import StepReport
from loraplex.engine.protocol import Abort, Sampling, Submit
from loraplex.engine.residency_protocol import Pin, Pins, Warm
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.bench.decode import TENANT
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.bench.prompts import Prompts
from loraplex.platform.bench.routes.plan import HINTED, RESIDENT, Beside, RouteName
from loraplex.platform.worker import EngineParts

BESIDE_PROMPT_TOKENS = 8
BESIDE_TOKENS = 1024
"""At most, of each that decodes."""
_SETTLED = 3
"""Tokens that requests have decoded before a gap is measured."""
_ALONE, _BESIDE, _WARM_UP = 1 << 22, 1 << 23, 1 << 24
"""Tell their prompts apart."""
_SAME, _MOST_WARM_UP = 3, 12
"""Requests in a row that came the same way, after which nothing changes any more; those at most
until then."""
_HINT_TTL_S, _HINTED_WITHIN_S = 600.0, 60.0
"""For how long a hint holds, and within which time it must have brought its adapter."""


@dataclass(frozen=True, slots=True)
class Times:
    """When things happen while others decode, in seconds from when gaps are measured."""

    arrival_s: float
    end_s: float


@dataclass(slots=True)
class ColdEngine:
    """An engine that always goes the same way, or chooses; its requests come one at a time.

    One adapter is pinned, for those that decode beside. The others come in turn, so that each was
    pushed off the device since it was asked for last, or are all resident, or come by hints.
    """

    route: RouteName
    parts: EngineParts
    pinned: BenchAdapter
    cold: Sequence[BenchAdapter]
    prompts: Prompts
    prompt_tokens: int
    most_tokens: int
    """Of those that decode beside."""
    _num_sent: int = field(default=0, init=False)

    def warm_up(self) -> int:
        """Have the host read all adapters, on a link that is not throttled, and then ask until all
        come the same way; return how many requests that took.

        Adapters that hints bring stay unread: what was used as often as what a hint is for is not
        pushed out for it.
        """
        self.parts.mailbox.put(Pins(version=1, pinned=(Pin(TENANT, self.pinned.digest),)))
        self._await(self.pinned)
        if self.route == HINTED:
            for _ in range(_SAME):
                self._way(self.pinned)
            return _SAME
        link = self.parts.transfers.link
        throttle, link.limit_bytes_per_s = link.limit_bytes_per_s, None
        for adapter in self.cold:
            self._ask(adapter, self.prompts.draw(1, _WARM_UP, self._num_sent))
        link.limit_bytes_per_s = throttle
        ways: list[frozenset[str]] = []
        while len(ways) < _MOST_WARM_UP:
            adapter = self.cold[len(ways) % len(self.cold)]
            ways.append(self._way(adapter))
            is_settled = len(ways) >= _SAME and len({*ways[-_SAME:]}) == 1
            # The first that is measured must not be the one that the device has.
            if is_settled and adapter is not self.cold[0]:
                break
        return len(ways)

    @property
    def taken(self) -> Mapping[str, int]:
        """Requests by how they came to run on their adapters."""
        return {str(route): count for route, count in self.parts.residency.counts.routes.items()}

    def ways_since(self, before: Mapping[str, int]) -> frozenset[str]:
        """How those requests came to run that were not there when they were counted before."""
        return frozenset(route for route, _ in self.taken.items() - before.items())

    def alone(self, number: int) -> tuple[float, int]:
        """Time to the first token in ms, and that token, of a request that is alone."""
        adapter = self._cold(2 * number)
        if self.route == HINTED:
            self._hint(adapter)
            self._await(adapter)
        return self._ask(adapter, self.prompts.draw(self.prompt_tokens, _ALONE, number))

    def beside(self, number: int, num_beside: int, times: Times) -> Beside:
        """Let so many requests decode while one comes."""
        watch = _Watch()
        for index in range(num_beside):
            prompt = self.prompts.draw(BESIDE_PROMPT_TOKENS, _BESIDE, number, index)
            watch.open(self._submit(self.pinned, prompt, self.most_tokens))
        while watch.least_tokens < _SETTLED:
            watch.see(self._step())
        adapter = self._cold(2 * number + 1)
        watch.start()
        if self.route == HINTED:
            self._hint(adapter)
        while watch.now_s < times.arrival_s:
            watch.see(self._step())
        sent_s, comer = watch.now_s, self._comer(adapter, number)
        first_s = 0.0
        while not first_s or watch.now_s < times.end_s:
            report = self._step()
            watch.see(report)
            if any(tokens.request_id == comer for tokens in report.events.tokens):
                first_s = watch.now_s
        self._end(watch.request_ids)
        return Beside(tuple(watch.gaps_ms), (first_s - sent_s) * 1e3)

    def close(self) -> None:
        """End its threads."""
        self.parts.transfers.close()

    def _way(self, adapter: BenchAdapter) -> frozenset[str]:
        """How a request comes to run on an adapter."""
        before = self.taken
        self._ask(adapter, self.prompts.draw(self.prompt_tokens, _WARM_UP, self._num_sent))
        return self.ways_since(before)

    def _comer(self, adapter: BenchAdapter, number: int) -> str:
        return self._submit(adapter, self.prompts.draw(self.prompt_tokens, _BESIDE, number), 1)

    def _cold(self, number: int) -> BenchAdapter:
        """The next adapter. The host has it and the device not, or it is resident, or a hint is to
        bring it from wherever it is."""
        adapter = self.cold[number % len(self.cold)]
        state = self._state(adapter)
        wanted = State.RESIDENT if self.route == RESIDENT else State.ABSENT
        key = AdapterKey(TENANT, adapter.digest)
        is_near = self.route == HINTED or key in self.parts.transfers.on_host
        if state is not wanted or not is_near:
            raise BenchFailed(
                f"before a request of {self.route} its adapter is {state.name.lower()} on the "
                f"device, where it must be {wanted.name.lower()}"
                + ("" if is_near else ", and the host has it no more")
            )
        return adapter

    def _state(self, adapter: BenchAdapter) -> State:
        return self.parts.residency.state(AdapterKey(TENANT, adapter.digest))

    def _ask(self, adapter: BenchAdapter, prompt: tuple[int, ...]) -> tuple[float, int]:
        started = perf_counter()
        self._submit(adapter, prompt, 1)
        while True:
            report = self._step()
            for tokens in report.events.tokens:
                return (perf_counter() - started) * 1e3, tokens.ids[0]
            self._rest(report)

    def _hint(self, adapter: BenchAdapter) -> None:
        self.parts.mailbox.put(Warm(TENANT, adapter.digest, _HINT_TTL_S))

    def _await(self, adapter: BenchAdapter) -> None:
        ends_s = perf_counter() + _HINTED_WITHIN_S
        while True:
            report = self._step()
            if self._state(adapter) is State.RESIDENT:
                return
            if perf_counter() > ends_s:
                raise BenchFailed(f"adapter {adapter.digest} has not come to the device by itself")
            self._rest(report, 1.0)

    def _submit(self, adapter: BenchAdapter, prompt: tuple[int, ...], max_tokens: int) -> str:
        self._num_sent += 1
        request_id = f"request-{self._num_sent}"
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0, seed=0)
        submit = Submit(
            request_id=request_id,
            tenant=TENANT,
            adapter=adapter.digest,
            prompt=prompt,
            sampling=sampling,
        )
        self.parts.mailbox.put(submit)
        return request_id

    def _end(self, request_ids: Sequence[str]) -> None:
        self.parts.mailbox.put(*map(Abort, request_ids))
        self._step()

    def _step(self) -> StepReport:
        report = self.parts.engine.step()
        if report.events.failed or report.events.rejected:
            raise BenchFailed(f"a request failed: {report.events}")
        return report

    def _rest(self, report: StepReport, at_most_s: float | None = None) -> None:
        if not report.plan.num_requests:
            self.parts.mailbox.wait(at_most_s)


class _Watch:
    """Notes when the tokens of some requests come."""

    def __init__(self) -> None:
        self.gaps_ms: list[float] = []
        self._started_s = perf_counter()
        self._last_s: dict[str, float] = {}
        self._num_tokens: dict[str, int] = {}

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Those that are watched."""
        return tuple(self._num_tokens)

    @property
    def least_tokens(self) -> int:
        """Of those that have the fewest."""
        return min(self._num_tokens.values())

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self._started_s

    def open(self, request_id: str) -> None:
        """Watch this one too."""
        self._num_tokens[request_id] = 0

    def start(self) -> None:
        """Gaps count from now on."""
        self.gaps_ms.clear()
        self._started_s = perf_counter()

    def see(self, report: StepReport) -> None:
        """A step has ended just now."""
        now_s = perf_counter()
        for tokens in report.events.tokens:
            if tokens.request_id not in self._num_tokens:
                continue
            if tokens.finish_reason is not None:
                raise BenchFailed(
                    f"a request ended after {self._num_tokens[tokens.request_id]} tokens, while "
                    "gaps between its tokens were measured; ask for shorter prompts"
                )
            self._num_tokens[tokens.request_id] += len(tokens.ids)
            if tokens.request_id in self._last_s:
                self.gaps_ms.append((now_s - self._last_s[tokens.request_id]) * 1e3)
            self._last_s[tokens.request_id] = now_s
