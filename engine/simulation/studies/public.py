"""Public traces that name no tenants: Azure's and Mooncake's."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from loraplex.engine.simulation.devices import Device, read_device
from loraplex.engine.simulation.experiment import Setup, at_load
from loraplex.engine.simulation.metrics import measure
from loraplex.engine.simulation.prompts import ideal_hit_share
from loraplex.engine.simulation.studies.study import Options, print_table, simulate
from loraplex.engine.simulation.traces import read_trace
from loraplex.engine.simulation.workload import AdapterMix, Requests, scaled, with_adapters

POLICIES = ("fcfs", "vtc", "dlpm", "chameleon", "fair")
NUM_TENANTS = 16
_ZIPF, _LOAD, _NOISE = 1.0, 1.1, 0.05


def public(options: Options) -> None:
    """PROFILE TRACE…: each at 1.1 times what the device can do, of 16 tenants with 4 adapters."""
    device = read_device(str(options.paths[0]))
    for path in options.paths[1:]:
        _one_trace(options, path, device)


def with_tenants(requests: Requests, seed: int = 0) -> Requests:
    """Deal requests out to tenants, the i-th of whom has a share in proportion to 1/i.

    Requests whose prompts begin alike are one tenant's: it is the first block that is dealt.
    """
    rng = np.random.default_rng((seed, 4))
    weights = np.arange(1, NUM_TENANTS + 1, dtype=float) ** -_ZIPF
    picks = rng.choice(NUM_TENANTS, len(requests), p=weights / weights.sum()).tolist()
    of_block: dict[tuple[int, ...], int] = {}
    dealt = []
    for request, pick in zip(requests, picks, strict=True):
        start = request.hash_ids[:2]
        number = of_block.setdefault(start, pick) if start else pick
        dealt.append(replace(request, tenant=f"t{number}"))
    return tuple(dealt)


def _one_trace(options: Options, path: Path, device: Device) -> None:
    requests = scaled(read_trace(path), 1.0, options.until_s)
    longest = device.kv_tokens - max(r.output_tokens for r in requests)
    fitting = tuple(r for r in requests if r.prompt_tokens < longest)
    mixed = with_adapters(with_tenants(fitting), AdapterMix(4), 0)
    setup = Setup(device, mixed, noise=_NOISE, seed=0)
    setup = replace(setup, requests=at_load(setup, _LOAD))
    rows = []
    for policy in options.policies or POLICIES:
        run = simulate(setup, policy)
        m = measure(run)
        rows.append(
            (
                f"`{policy}`",
                f"{m.tokens_per_s:,.0f}",
                f"{m.p50_ttft_s:.1f}, {m.p99_ttft_s:.0f} s",
                f"{m.p99_tpot_s:.2f} s",
                f"{m.jain_satisfied:.2f}",
                f"{m.max_diff:,.0f}",
                f"{m.max_wait_over_fair:.1f}",
                f"{m.prefix_hit_rate:.3f}",
            )
        )
    ideal = ideal_hit_share(mixed)
    header = (
        f"{path.stem}: {len(fitting):,} of {len(requests):,}",
        "tokens/s",
        "P50, P99 TTFT",
        "P99 TPOT",
        "Jain, satisfied",
        "MaxDiff",
        "wait ÷ fair",
    )
    print_table((*header, f"prefix hits (ideal {ideal:.3f})"), rows)
