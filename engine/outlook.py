"""What admission may know: what is there now, and what is likely to come."""

from collections.abc import Callable, Sequence, Set

from loraplex.adapters.residency import Residency, State
from loraplex.engine.admission import Blocked
from loraplex.engine.cold_starts import ColdStarts
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.costs_port import OutputLengths, StepCosts
from loraplex.engine.kv_forecast import KvForecast
from loraplex.engine.loads import Loads
from loraplex.engine.predicted_ends import PredictedEnds
from loraplex.engine.request import Request
from loraplex.engine.request_blocks import RequestBlocks


class Outlook:
    """An `AdmissionView` of a scheduler. Predictions are in ms; nothing changes by asking, but that
    a waiting request remembers what length was predicted."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: RequestBlocks,
        residency: Residency,
        loads: Loads,
        costs: StepCosts,
        lengths: OutputLengths,
        cold: ColdStarts,
    ) -> None:
        self._cold = cold
        self._config = config
        self._blocks = blocks
        self._pool = blocks.pool
        self._residency = residency
        self._swapping = blocks.swapping
        self._loads = loads
        self._costs = costs
        self._lengths = lengths
        self._running: list[Request] = []
        self._computed: Callable[[Request], int] = _computed_before
        self._step_ms = 0.0
        self._ends: PredictedEnds | None = None
        """Of those that run now, once somebody has asked."""
        self._forecast = KvForecast(self._output_left_anew)

    def begin_step(
        self, running: list[Request], computed: Callable[[Request], int], step_ms: float
    ) -> None:
        """Look at these running requests, of which `computed` tells the tokens in the KV cache
        after this step, and of which a step took `step_ms` of late."""
        self._running, self._computed, self._step_ms = running, computed, step_ms
        self._ends = None
        self._forecast.next_step()

    def starts(self, request: Request, shared: list[int]) -> None:
        """It is about to take over these blocks and run."""
        if not request.expected_tokens:
            self._expect(request)
        self._ends = None
        self._forecast.start(request, self._own_tokens(request, shared), self._output_left(request))

    def stopped(self, request: Request) -> None:
        """It has ended or lost its blocks."""
        self._ends = None
        self._forecast.stop(request)

    @property
    def running(self) -> Sequence[Request]:
        """What runs, and yields to nobody."""
        return self._running

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._pool.num_free

    def adapter_state(self, request: Request) -> State:
        """See `AdmissionView.adapter_state`."""
        key = request.adapter
        if key is None:
            return State.RESIDENT
        state = self._residency.state(key)
        if state is State.LOADING:
            if self._cold.may_start(request, self.cached_tokens):
                return State.RESIDENT
            if self._residency.is_unclaimed(key):
                return State.ABSENT
        return state

    @property
    def kept(self) -> Set[str]:
        """See `AdmissionView.kept`."""
        return self._loads.kept

    @property
    def adapters_version(self) -> int:
        """See `AdmissionView.adapters_version`."""
        return self._residency.version + self._cold.version

    def shared(self, request: Request) -> list[int]:
        """Blocks that it can take over instead of computing them."""
        return self._blocks.shared(request, self._computed)

    def cached_tokens(self, request: Request) -> int:
        """Tokens of it that need not be computed."""
        num_shared = len(self.shared(request)) * self._pool.block_size
        copy = request.host_copy
        return num_shared if copy is None else max(num_shared, copy.num_tokens)

    def missing(self, request: Request, shared: list[int], num_running: int) -> Blocked | None:
        """What a request lacks to start now; LOADING also for one whose load may start."""
        if num_running >= self._config.max_running:
            return Blocked.SLOTS
        state = self.adapter_state(request)
        if state is State.LOADING:
            return Blocked.LOADING
        if state is State.ABSENT:
            return self._loads.refusal(request)
        if self._missing_beside(shared, request) > 0 or self._would_overflow(request, shared):
            return Blocked.KV_BLOCKS
        return None

    def fits(self, request: Request) -> bool:
        """True if there are KV blocks for it now, and for what is expected of its output."""
        shared = self.shared(request)
        if self._missing_beside(shared, request) > 0:
            return False
        return not self._would_overflow(request, shared)

    def predicted_ms(self, request: Request) -> float:
        """What all that is left of it costs the machine: prefill, decodes, load, and copying back
        what was computed."""
        self._expect(request)
        return_ms = self._swapping.return_ms(request, len(self.shared(request)))
        return return_ms + self._costs.request_ms(
            request.num_tokens,
            self.cached_tokens(request),
            self._output_left(request),
            request.submission.rank,
            self._load_bytes(request),
        )

    def load_ms(self, request: Request) -> float:
        """See `AdmissionView.load_ms`."""
        load_bytes = self._load_bytes(request)
        if not load_bytes:
            return 0.0
        return self._costs.request_ms(1, 0, 0, 0.0, load_bytes) - self._costs.request_ms(1, 0, 0)

    def rough_ms(self, request: Request, num_known: int) -> float:
        """What is left of a request costs the machine, quickly: by the output that was expected of
        it when it was looked at last, without a load. So many tokens need not be computed."""
        return self._costs.request_ms(
            request.num_tokens,
            num_known,
            self._output_left(request),
            request.submission.rank,
        )

    def missing_bytes(self, request: Request) -> int:
        """Bytes of its adapter, as long as it is not there."""
        is_there = self.adapter_state(request) is State.RESIDENT
        return 0 if is_there else request.submission.adapter_bytes

    def recompute_ms(self, request: Request) -> float:
        """What it costs to compute anew what a running request has in the KV cache, should nothing
        of it be found again."""
        if not request.num_computed_tokens:
            return 0.0
        return self._costs.request_ms(request.num_computed_tokens, 0, 0, request.submission.rank)

    def restore_ms(self, request: Request) -> float:
        """See `AdmissionView.restore_ms`."""
        num_shared = len(self.shared(request))
        if request.host_copy is not None:
            return self._swapping.restore_ms(request, num_shared)
        num_lost = request.num_lost_tokens
        num_cached = num_shared * self._pool.block_size
        if num_cached >= num_lost:
            return 0.0
        return self._costs.request_ms(num_lost, num_cached, 0, request.submission.rank)

    def predicted_run_ms(self, request: Request) -> float:
        """Wall time from its start to its end. One that starts on an adapter which is on its way
        decodes once all of that is there."""
        self._expect(request)
        num_tokens = request.num_tokens - self.cached_tokens(request)
        prefill_steps = -(-num_tokens // self._config.max_step_tokens)
        prefill_ms = max(prefill_steps * self._step_ms, self._cold.copy_ms(request))
        return prefill_ms + self._output_left(request) * self._step_ms

    def predicted_wait_ms(self, request: Request) -> float:
        """Wall time until those that run will have left enough blocks and memory for it."""
        missing_blocks = self._missing_blocks(request)
        missing_bytes = self._bytes_to_free(request) - self._loadable_bytes(request)
        if self._ends is None:
            self._ends = PredictedEnds(self._running, self._output_left)
        steps_ms = self._ends.steps_until(missing_blocks, missing_bytes) * self._step_ms
        if missing_bytes <= 0:
            return steps_ms
        # What is on its way holds memory, which nobody leaves before it has come.
        return max(steps_ms, self._cold.loads_ms())

    def _would_overflow(self, request: Request, shared: list[int]) -> bool:
        """True if the pool is expected to run out before all have ended that run and it."""
        if not self._config.kv_forecast or not len(self._forecast):
            return False
        if not request.expected_tokens:
            self._expect(request)
        own = self._own_tokens(request, shared)
        capacity = self._pool.num_blocks * self._pool.block_size
        return self._forecast.exceeds(capacity, own, self._output_left(request))

    def _own_tokens(self, request: Request, shared: list[int]) -> float:
        """That it will hold beside those that others hold, with half a block that is not full."""
        size = self._pool.block_size
        return request.num_tokens - self._pool.num_held(shared) * size + (size - 1) / 2

    def _missing_blocks(self, request: Request) -> int:
        return self._missing_beside(self.shared(request), request)

    def _missing_beside(self, shared: list[int], request: Request) -> int:
        needed = self._pool.missing(shared, request.num_tokens)
        return needed - self._pool.num_free_beside(shared)

    def _load_bytes(self, request: Request) -> int:
        """Of a load that nobody has paid for."""
        key = request.adapter
        if key is None:
            return 0
        is_free = self._residency.state(key) is not State.ABSENT
        is_free = is_free and not self._residency.is_unclaimed(key)
        return 0 if is_free else request.submission.adapter_bytes

    def _bytes_to_free(self, request: Request) -> int:
        key = request.adapter
        is_absent = key is not None and self._residency.state(key) is State.ABSENT
        return request.submission.adapter_bytes if is_absent else 0

    def _loadable_bytes(self, request: Request) -> int:
        return self._residency.loadable_bytes(request.tenant)

    def _output_left(self, request: Request) -> float:
        """Expected tokens that are still to come, at least 1."""
        if not request.expected_tokens:
            self._expect(request)
        return max(1.0, request.expected_tokens - request.num_output_tokens)

    def _output_left_anew(self, request: Request) -> float:
        max_tokens, generated = request.submission.sampling.max_tokens, request.num_output_tokens
        return self._lengths.predict(request.adapter, max_tokens, generated) - generated

    def _expect(self, request: Request) -> None:
        max_tokens = request.submission.sampling.max_tokens
        request.expected_tokens = self._lengths.predict(request.adapter, max_tokens)


def _computed_before(request: Request) -> int:
    return request.num_computed_tokens
