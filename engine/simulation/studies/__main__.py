"""`python -m loraplex.engine.simulation.studies NAME PATH…`: the tables of `docs/scheduling.md`."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.studies import (
    adapters,
    cold_routes,
    many_tenants,
    public,
    step_costs,
    vtc_trace,
)
from loraplex.engine.simulation.studies.study import Options

STUDIES: Mapping[str, Callable[[Options], None]] = {
    "vtc": vtc_trace.policies,
    "frontier": vtc_trace.frontier,
    "tenants": many_tenants.many_tenants,
    "slot": adapters.one_slot,
    "caches": adapters.caches,
    "routes": cold_routes.cold_routes,
    "public": public.public,
    "costs": step_costs.step_costs,
}

_OF_SEVERAL_RUNS = frozenset({"vtc", "frontier", "routes", "costs"})


def main(arguments: list[str]) -> None:
    """Run one study and print its tables."""
    told = "\n".join(f"{name}: {study.__doc__}" for name, study in STUDIES.items())
    parser = argparse.ArgumentParser(
        prog="python -m loraplex.engine.simulation.studies",
        description=told,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("paths", nargs="*", type=Path, help="traces and profiles")
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs of each, for vtc, frontier, routes and costs"
    )
    parser.add_argument("--until", type=float, help="only the first so many seconds of traces")
    parser.add_argument("--out", type=Path, help="folder to write pictures into")
    parser.add_argument("--policies", default="", help="by commas; default the study's own")
    given = parser.parse_args(arguments)
    policies = tuple(filter(None, given.policies.split(",")))
    options = Options(tuple(given.paths), given.seeds, given.until, given.out, policies)
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: one run is the least")
    if given.seeds > 1 and given.study not in _OF_SEVERAL_RUNS:
        parser.error(f"--seeds {given.seeds}: {given.study} makes one run of each")
    try:
        STUDIES[given.study](options)
    except (SimulationError, ValueError, IndexError) as error:
        sys.exit(f"{given.study}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
