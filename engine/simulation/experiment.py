"""One simulated experiment: which load, device, policy and cache, put together by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from loraplex.adapters.eviction import (
    Eviction,
    GreedyDualSizeFrequency,
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LeastWorth,
)
from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import AdmissionPolicy, FirstComeFirstServed
from loraplex.engine.config import Targets
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.lengths import OutputLengths
from loraplex.engine.simulation.baselines.chameleon import SizeQueues
from loraplex.engine.simulation.baselines.dlpm import DeficitPrefixMatch
from loraplex.engine.simulation.baselines.queues import DrainThreshold, SkipScan
from loraplex.engine.simulation.baselines.slora import (
    SloraFirstCome,
    SloraLimits,
    VirtualTokenCounter,
)
from loraplex.engine.simulation.baselines.token_units import TokenFairAdmission
from loraplex.engine.simulation.bound import BoundUse, bound_ms
from loraplex.engine.simulation.caches import Belady, ChameleonScore, Pinned
from loraplex.engine.simulation.devices import Device
from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.records import Run
from loraplex.engine.simulation.routes import Copying
from loraplex.engine.simulation.simulator import Load, Simulation
from loraplex.engine.simulation.workload import Requests, scaled

T = TypeVar("T")

_MIB = 1 << 20

FAIR = FairSettings(
    quantum_ms=500.0, overdraft_ms=1000.0, max_skips=16, max_open=1000, max_drain_ms=4000.0
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for all policies that are compared."""

    device: Device
    requests: Requests
    max_tokens: int | None = None
    """Cap that each request names; None takes the longest output of the load."""
    slots: int | None = None
    """Memory for adapters, in adapters of the largest rank; None holds all at once."""
    noise: float = 0.0
    seed: int = 0
    fair: FairSettings = FAIR
    copying: Copying = field(default_factory=Copying)
    targets: Targets = field(default_factory=Targets)
    kv_forecast: bool = True


def run_policy(
    setup: Setup,
    policy: str = "fair",
    cache: str = "worth",
    show: Callable[[float, float], None] = lambda _at, _until: None,
) -> Run:
    """Run the load under a policy and a cache, by name; see `POLICIES` and `CACHES`.

    Raises SimulationError.
    """
    make_policy = _known("policy", policy, POLICIES)
    make_cache = _known("cache", cache, CACHES)
    cap = setup.max_tokens or max(request.output_tokens for request in setup.requests)
    load = Load(
        setup.requests,
        cap,
        setup.noise,
        setup.seed,
        setup.copying,
        setup.targets,
        kv_forecast=setup.kv_forecast and policy not in _KNOW_LENGTHS,
    )
    residency = Residency(_adapter_bytes(setup), make_cache(setup.requests))
    made = make_policy(setup)
    if not isinstance(made, FairAdmission):
        return Simulation(setup.device, load, made, residency).run(show)
    use = BoundUse(made.main.share, sorted({r.tenant for r in setup.requests}))
    simulation = Simulation(setup.device, load, made, residency, use.look)
    run = simulation.run(show)
    made.check()
    assert made.main.share.num_open == 0, "a charge outlived its request"
    run.bound_used = use.widest_ms / bound_ms(_fair(setup), _largest_ms(setup, cap, simulation))
    return run


def at_load(setup: Setup, load: float) -> Requests:
    """The same requests, so fast that they ask for `load` × what the device can do.

    What it can do is measured: the time that it takes for all of them when they are there from the
    beginning, first come, first served.
    """
    at_once = tuple(replace(r, arrival_s=0.0, cancelled_after_s=None) for r in setup.requests)
    plain = replace(setup, requests=at_once, slots=None, copying=Copying())
    busy_s = run_policy(plain, "fcfs").busy_ms / 1e3
    return scaled(setup.requests, setup.requests[-1].arrival_s * load / busy_s)


def _adapter_bytes(setup: Setup) -> int:
    adapters = {(r.tenant, r.adapter): r.rank for r in setup.requests if r.adapter is not None}
    if not adapters:
        return 1
    all_bytes = sum(adapters.values()) * setup.device.bytes_per_rank
    if setup.slots is None:
        return all_bytes
    if setup.slots < 1:
        raise SimulationError(f"{setup.slots} slots hold no adapter; at least 1 is needed")
    return setup.slots * max(adapters.values()) * setup.device.bytes_per_rank


def _fair(setup: Setup) -> FairSettings:
    return replace(setup.fair, max_open=setup.device.max_running)


def _largest_ms(setup: Setup, cap: int, simulation: Simulation) -> float:
    """Cap on what one request may cost: the longest prompt, the longest output, the largest
    adapter, nothing cached."""
    prompt = max(request.prompt_tokens for request in setup.requests)
    rank = max(request.rank for request in setup.requests)
    num_bytes = rank * setup.device.bytes_per_rank
    return simulation.costs.request_ms(prompt, 0, cap, num_bytes / _MIB, num_bytes)


def _slora_limits(setup: Setup) -> SloraLimits:
    longest = max(request.prompt_tokens for request in setup.requests)
    return SloraLimits(
        pool_tokens=setup.device.kv_tokens,
        batch_tokens=max(setup.device.max_step_tokens, longest),
        output_tokens={str(i): r.output_tokens for i, r in enumerate(setup.requests)},
    )


_KNOW_LENGTHS = frozenset({"slora", "vtc"})

POLICIES: Mapping[str, Callable[[Setup], AdmissionPolicy]] = {
    "fair": lambda setup: FairAdmission(_fair(setup)),
    "fair-tokens": lambda _: TokenFairAdmission(),
    "fcfs": lambda _: FirstComeFirstServed(),
    "slora": lambda setup: SloraFirstCome(_slora_limits(setup)),
    "vtc": lambda setup: VirtualTokenCounter(_slora_limits(setup)),
    "dlpm": lambda _: DeficitPrefixMatch(),
    "skip-scan": lambda _: SkipScan(),
    "drain": lambda _: DrainThreshold(),
    "chameleon": lambda setup: SizeQueues(setup.device.kv_tokens, OutputLengths()),
}
"""Policies of admission: ours, the engine's plain one, and those of others."""


def _uses(requests: Requests) -> list[AdapterKey]:
    return [AdapterKey(r.tenant, r.adapter) for r in requests if r.adapter is not None]


CACHES: Mapping[str, Callable[[Requests], Eviction]] = {
    "worth": lambda _: LeastWorth(),
    "lru": lambda _: LeastRecentlyUsed(),
    "lfu": lambda _: LeastFrequentlyUsed(),
    "gdsf": lambda _: GreedyDualSizeFrequency(),
    "chameleon": lambda _: ChameleonScore(),
    "pinned": lambda requests: Pinned(_uses(requests)),
    "belady": lambda requests: Belady(_uses(requests)),
}
"""Which adapter goes when memory is needed."""


def _known(kind: str, name: str, table: Mapping[str, T]) -> T:
    if name not in table:
        raise SimulationError(f"{kind} {name!r} is not one of: {', '.join(table)}")
    return table[name]
