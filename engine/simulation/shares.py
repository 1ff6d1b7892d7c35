"""Which tenants ask for less than an even share of the machine."""

from loraplex.engine.simulation.records import Run


def max_min_level(demands: list[float], capacity: float) -> float:
    """The most that a tenant gets if `capacity` is shared evenly and nobody gets more than it
    demands; infinite if all get all."""
    left, rest = capacity, sorted(demands)
    for number, demand in enumerate(rest):
        level = left / (len(rest) - number)
        if demand > level:
            return level
        left -= demand
    return float("inf")


def below_share(run: Run, seconds: float) -> set[str]:
    """Tenants whose requests together need less than their max-min share of so many seconds of the
    machine, by what each had of it."""
    work: dict[str, float] = {}
    for record in run.records:
        work[record.tenant] = work.get(record.tenant, 0.0) + record.machine_ms / 1e3
    level = max_min_level(list(work.values()), seconds)
    return {tenant for tenant, demand in work.items() if demand <= level}
