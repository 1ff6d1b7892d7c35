"""What each request would wait for if the machine were a fluid, shared evenly by tenants."""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush


def fluid_waits_s(requests: Sequence[tuple[float, str, float]]) -> list[float]:
    """Seconds from each request's arrival to its start under generalised processor sharing.

    `requests`: arrival, tenant and work in seconds of the whole machine, sorted by arrival. Tenants
    with work share the machine evenly; a tenant's own requests are served one after the other, so
    one starts when its tenant's earlier ones are done.
    """
    waits = [0.0] * len(requests)
    queues: dict[str, deque[int]] = {}
    # Virtual time: seconds of service that each busy tenant has got so far.
    clock_s = virtual_s = 0.0
    ends: list[tuple[float, str]] = []

    def advance(until_s: float) -> None:
        nonlocal clock_s, virtual_s
        while ends:
            end, tenant = ends[0]
            at = clock_s + (end - virtual_s) * len(ends)
            if at > until_s:
                virtual_s += (until_s - clock_s) / len(ends)
                break
            clock_s, virtual_s = at, end
            heappop(ends)
            queue = queues[tenant]
            queue.popleft()
            if queue:
                waits[queue[0]] = clock_s - requests[queue[0]][0]
                heappush(ends, (virtual_s + requests[queue[0]][2], tenant))
        clock_s = max(clock_s, until_s)

    for number, (arrival_s, tenant, work_s) in enumerate(requests):
        advance(arrival_s)
        queue = queues.setdefault(tenant, deque())
        queue.append(number)
        if len(queue) == 1:
            heappush(ends, (virtual_s + work_s, tenant))
    if requests:
        advance(float("inf"))
    return waits
