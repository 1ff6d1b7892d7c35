"""When requests come, how long they are and which model they name: decided before the first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of an open loop: it comes at its time, whatever became of those before it."""

    at_s: float
    """Since the start of the run."""
    input_tokens: int
    output_tokens: int
    tenant: str | None = None
    """Who asks, where a trace says."""
    model: str = ""


def poisson(
    rate: float, num_requests: int, lengths: tuple[int, int], seed: int
) -> Iterator[Arrival]:
    """Arrivals whose gaps are exponential with mean 1/`rate` seconds; `lengths` are in and out."""
    gaps_s = np.random.default_rng(seed).exponential(1 / rate, num_requests)
    for at_s in np.cumsum(gaps_s).tolist():
        yield Arrival(at_s, *lengths)


def with_models(
    arrivals: Sequence[Arrival], models: Sequence[str], zipf: float | None, seed: int
) -> list[Arrival]:
    """Name a model for each arrival.

    With `zipf` the model of rank k, from 1, is drawn with a weight of k to the power of −`zipf`.
    Without, models take turns; where a trace names tenants, the tenants do, each staying with one.
    """
    if zipf is not None:
        weights = np.arange(1, len(models) + 1, dtype=np.float64) ** -zipf
        generator = np.random.default_rng([seed, 1])
        drawn = generator.choice(len(models), len(arrivals), p=weights / weights.sum())
        turns = drawn.tolist()
    else:
        tenants = {tenant: turn for turn, tenant in enumerate(_tenants(arrivals))}
        turns = [
            turn if arrival.tenant is None else tenants[arrival.tenant]
            for turn, arrival in enumerate(arrivals)
        ]
    return [
        replace(arrival, model=models[turn % len(models)])
        for arrival, turn in zip(arrivals, turns, strict=True)
    ]


def _tenants(arrivals: Sequence[Arrival]) -> list[str]:
    """In the order in which they come."""
    return list(dict.fromkeys(arrival.tenant for arrival in arrivals if arrival.tenant is not None))
