"""The walk, device half: one step of the engine."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from loraplex.adapters.errors import AdapterError, AdapterMismatch
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.reservations import RESERVABLE_SHARE, Reservations
from loraplex.adapters.residency import Residency
from loraplex.adapters.sizes import NO_SIZES, AdapterSizes
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.errors import EngineOverloaded, RequestRefused
from loraplex.engine.events import Events
from loraplex.engine.inspection import Inspection
from loraplex.engine.mailbox import Mailbox, Withdrawn
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.protocol import ADAPTER_MISMATCH, Abort, Drop, Submit, Why
from loraplex.engine.residency_protocol import (
    ColdStatus,
    LinkStatus,
    Pins,
    ResidencyQuery,
    ResidencyReport,
    TierQuery,
    TierReport,
    Warm,
)
from loraplex.engine.residency_report import report_of, tier_of
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.transfers import Transfers
from loraplex.engine.transfers_port import Arrival

_log = logging.getLogger(__name__)

Batch = TypeVar("Batch")

LOAD_FAILED = "adapter_load_failed"
LOAD_FAILED_MESSAGE = "the adapter could not be loaded; the operator's log has the reason"
UNLOADABLE_MESSAGE = (
    "the adapter does not fit any more beside what is promised to other tenants, or what its own "
    "may hold; the operator can change pins, floors and caps"
)
_TOO_MUCH = (
    f"pins and floors may take {RESERVABLE_SHARE:.0%} of the memory for adapters together, and "
    "pins of a tenant no more than its cap"
)
STEP_FAILED_MESSAGE = "the request could not be computed; the operator's log has the reason"


class Runner(Protocol[Batch]):
    """Computes plans. `copy` and `build` are where data moves between host and device.

    One step at a time: what was launched is collected, or has raised, before the next is copied.
    """

    @property
    def overlaps(self) -> bool:
        """True if a device computes between `launch` and `collect`, whatever the host does."""
        ...

    def keep_passes(self, plan: StepPlan) -> None:
        """Give up passes that the plan lists no longer; before anything that they use is."""
        ...

    @property
    def num_cold_passes(self) -> int:
        """Passes that are under way."""
        ...

    @property
    def num_assistants(self) -> int:
        """Processes that could compute adapters' parts of them now."""
        ...

    def copy(self, plan: StepPlan) -> None:
        """Copy the plan's KV blocks, those to the host first; before `build`."""
        ...

    def build(
        self,
        plan: StepPlan,
        adapters: Mapping[AdapterKey, AdapterWeights],
        arriving: Mapping[AdapterKey, LoadProgress],
    ) -> Batch:
        """Turn a plan into device tensors; `adapters` are there, `arriving` on their way."""
        ...

    def launch(self, batch: Batch) -> Any:  # noqa: ANN401  what `collect` takes is its own matter
        """Have the device compute the batch and sample, without waiting for it. Where the host
        itself computes, that is left to `collect`."""
        ...

    def collect(self, launched: Any) -> StepOutput:  # noqa: ANN401  what the runner launched
        """Wait until what was launched is done, and return what was sampled."""
        ...

    def abandon(self) -> None:
        """A step broke before it was collected, or there will be none: wait until the device
        computes nothing of it, for what it uses may be given up next, and give up all passes.
        Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did, for metrics and the step log; times in seconds."""

    plan: StepPlan
    events: Events
    plan_s: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0
    """From launch to collect, but for what the host does in between if nothing computes then."""
    commit_s: float = 0.0
    arrivals: tuple[Arrival, ...] = ()
    """Loads that ended before it."""


class Engine(Generic[Batch]):
    """One base model, many adapters, one batch. Belongs to one thread."""

    def __init__(
        self,
        mailbox: Mailbox,
        scheduler: Scheduler,
        residency: Residency,
        transfers: Transfers,
        runner: Runner[Batch],
        adapter_sizes: Callable[[str], AdapterSizes],
        clock: Callable[[], float],
    ) -> None:
        """`adapter_sizes` tells from a digest what the adapter needs resident, or raises
        AdapterError or OSError, without waiting where messages come by an `Intake`; `clock` is
        monotonic, in seconds."""
        self._mailbox = mailbox
        self._scheduler = scheduler
        self._residency = residency
        self._transfers = transfers
        self._runner = runner
        self._adapter_sizes = adapter_sizes
        self._clock = clock
        self._asides = Events()

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> StepReport:
        """Take messages, plan, launch, collect, commit. Waits for no client; for loads up to the
        plan's `wait_ms`, where nothing else is computed; and for what passes asked the host.

        While the device computes, `meanwhile` is called and requests are queued, nothing else."""
        started = perf_counter()
        self._take_messages()
        arrivals = self._take_arrivals()
        plan = self._scheduler.plan(self._clock())
        self._runner.keep_passes(plan)
        self._transfers.start(plan)
        planned = perf_counter()
        try:
            copy_s = self._copy(plan)
            if not plan.num_requests:
                events = self._with_asides(self._scheduler.take_events())
                return StepReport(plan, events, arrivals=arrivals)
            batch = self._runner.build(plan, self._transfers.resident, self._transfers.arriving)
            built = perf_counter()
            launched = self._runner.launch(batch)
            idle_s = self._do_beside(meanwhile)
            output = self._runner.collect(launched)
            ran = perf_counter() - idle_s
            step_ms, copy_ms = (ran - started - copy_s) * 1e3, copy_s * 1e3
            events = self._with_asides(self._scheduler.commit(plan, output, step_ms, copy_ms))
        except Exception:
            self._break_off(plan)
            raise
        times = (planned - started, built - planned, ran - built, perf_counter() - idle_s - ran)
        return StepReport(plan, events, *times, arrivals)

    def _do_beside(self, meanwhile: Callable[[], None]) -> float:
        """Do what can be done while the device computes; return the seconds that were taken from
        the step, which its requests are not charged for."""
        started = perf_counter()
        meanwhile()
        self._take_requests()
        return 0.0 if self._runner.overlaps else perf_counter() - started

    def _break_off(self, plan: StepPlan) -> None:
        self._runner.abandon()
        # The cause is logged, not told: the clients of a step belong to several tenants.
        self._scheduler.fail_step(plan, STEP_FAILED_MESSAGE)

    def _copy(self, plan: StepPlan) -> float:
        """Copy KV blocks, if any are to be copied; return the seconds that it took."""
        if not plan.num_copied_blocks and not plan.lent_blocks:
            return 0.0
        started = perf_counter()
        self._runner.copy(plan)
        return perf_counter() - started

    def close(self) -> None:
        """Give up what goes on from step to step; `step` is called no more."""
        self._runner.abandon()

    @property
    def idle_s(self) -> float | None:
        """How long nothing is to be done, if nothing comes; None for ever."""
        next_s = self._scheduler.first_tokens.next_s
        return None if next_s is None else max(0.0, next_s - self._clock())

    def failure_events(self) -> Events:
        """What to report after `step` raised."""
        return self._with_asides(self._scheduler.take_events())

    def _take_messages(self) -> None:
        for message in self._mailbox.take():
            if isinstance(message, Abort):
                self._scheduler.abort(message.request_id, self._clock())
            elif isinstance(message, Why):
                self._asides.explain(self._scheduler.explain(message.request_id, self._clock()))
            elif isinstance(message, Submit):
                self._accept(message)
            elif isinstance(message, Withdrawn):
                self._asides.add_withdrawn(message.submit)
            else:
                self._tend(message)

    def _take_requests(self) -> None:
        """Queue those that have come, up to the first message of another kind: it keeps its place,
        and waits for the end of the step."""
        for submit in self._mailbox.take_submits():
            self._accept(submit)

    def _tend(self, message: Drop | Pins | Warm | Inspection) -> None:
        """What is about adapters rather than requests."""
        if isinstance(message, Drop):
            self._drop(AdapterKey(message.tenant, message.adapter))
        elif isinstance(message, Pins):
            self._reserve(message)
        elif isinstance(message, Warm):
            self._warm(message)
        else:
            message.reply(self._seen(message.query))

    def _warm(self, hint: Warm) -> None:
        """Expect a use. What cannot be read is told to its first request, as if there were none."""
        try:
            num_bytes = self._adapter_sizes(hint.adapter).device_bytes
        except Exception as error:  # noqa: BLE001  a hint must not break a step
            _log.warning("adapter %s is not warmed: it cannot be read: %s", hint.adapter, error)
            return
        key, until_s = AdapterKey(hint.tenant, hint.adapter), self._clock() + hint.ttl_s
        if not self._scheduler.prefetch.warm(key, num_bytes, until_s):
            _log.warning("tenant %s has too many open hints; one is ignored", hint.tenant)

    def _seen(self, query: ResidencyQuery | TierQuery) -> ResidencyReport | TierReport:
        if isinstance(query, TierQuery):
            return tier_of(self._residency, query)
        return report_of(self._residency, self._cold(), self._clock(), query.query_id)

    def _cold(self) -> ColdStatus:
        link = self._transfers.link
        return ColdStatus(
            link=LinkStatus(
                limit_bytes_per_s=link.limit_bytes_per_s, measured_bytes_per_s=link.bytes_per_s
            ),
            num_passes=self._runner.num_cold_passes,
            num_assistants=self._runner.num_assistants,
        )

    def _drop(self, key: AdapterKey) -> None:
        self._residency.drop(key)
        self._scheduler.forget(key)

    def _reserve(self, pins: Pins) -> None:
        """Keep these promises, if they are the newest; fail those who can never be served now."""
        pinned: dict[AdapterKey, int] = {}
        for pin in pins.pinned:
            try:
                sizes = self._adapter_sizes(pin.adapter)
                pinned[AdapterKey(pin.tenant, pin.adapter)] = sizes.device_bytes
            except Exception as error:  # noqa: BLE001  one pin must not take the others along
                _log.error("pinned adapter %s cannot be read: %s", pin.adapter, error)
        asked = Reservations(
            pins.version, pinned, pins.floors, pins.caps, pins.host_floors, pins.host_caps
        )
        if not self._residency.reserve(asked):
            return
        granted = self._residency.granted
        for key in granted.refused_pins:
            _log.warning("adapter %s is not pinned: %s", key.digest, _TOO_MUCH)
        for tenant in granted.refused_floors:
            _log.warning("tenant %s has no floor: %s", tenant, _TOO_MUCH)
        for tenant in self._residency.host.granted.refused_floors:
            _log.warning("tenant %s has no floor of the host: %s", tenant, _TOO_MUCH)
        for key in self._residency.unloadable():
            self._scheduler.fail_adapter(key, LOAD_FAILED, UNLOADABLE_MESSAGE)

    def _accept(self, submit: Submit) -> None:
        try:
            sizes = NO_SIZES if submit.adapter is None else self._adapter_sizes(submit.adapter)
            self._scheduler.add(submit, self._clock(), sizes.device_bytes, sizes.vocab_size or 0)
        except (AdapterError, OSError) as error:
            _log.error("adapter %s cannot be read: %s", submit.adapter, error)
            self._asides.add_turned_away(submit, LOAD_FAILED, LOAD_FAILED_MESSAGE)
        except (RequestRefused, EngineOverloaded) as error:
            self._asides.add_rejected(submit, error)
        except Exception:  # noqa: BLE001  one request must not take those behind it along
            _log.exception("request %s could not be taken", submit.request_id)
            self._asides.add_turned_away(submit, "internal_error", STEP_FAILED_MESSAGE)

    def _take_arrivals(self) -> tuple[Arrival, ...]:
        self._scheduler.routes.num_assistants = self._runner.num_assistants
        arrivals = self._transfers.arrivals()
        for arrival in arrivals:
            if arrival.error is not None:
                self._residency.fail_load(arrival.key)
                self._scheduler.fail_adapter(arrival.key, *_told(arrival.error))
            else:
                self._residency.finish_load(arrival.key)
            if arrival.num_bytes:
                self._scheduler.routes.note_copy(arrival.num_bytes, arrival.copy_s)
        for progress in self._transfers.progress():
            key, num_layers, of_layers, is_open = progress
            self._residency.note_layers(key, num_layers, of_layers, is_open=is_open)
        return tuple(arrivals)

    def _with_asides(self, events: Events) -> Events:
        """Add what is not of the step: requests that were turned away, answers to questions."""
        events.extend(self._asides)
        self._asides = Events()
        return events


def _told(error: Exception | None) -> tuple[str, str]:
    """Code and message of an adapter that could not be loaded: its owner can mend a mismatch."""
    if isinstance(error, AdapterMismatch):
        return ADAPTER_MISMATCH, str(error)
    return LOAD_FAILED, LOAD_FAILED_MESSAGE
