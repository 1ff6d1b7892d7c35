"""A gateway's process as far as quotas see it: reserves what it can and prints how much it got."""

import asyncio
import sys

from loraplex.tenants.errors import QuotaExceeded
from loraplex.tenants.limits import Limits, TenantLimits
from loraplex.tenants.quotas import Reservation
from loraplex.tenants.quotas_redis import RedisQuotas

NUM_TASKS = 8


async def run(url: str, limit: int, name: str) -> int:
    """Ask until refused, from several tasks at once, at one moment of time; return the tokens."""
    quotas = RedisQuotas.open(url, Limits(1_000_000, limit, 1_000_000), clock_ms=lambda: 1000)

    async def ask(task: int) -> int:
        admitted = 0
        while True:
            request_id = f"{name}-{task}-{admitted}"
            request = Reservation(request_id, "shared", TenantLimits(), tokens=1)
            try:
                hold = await quotas.reserve(request)
            except QuotaExceeded:
                return admitted
            # Every other request is repeated, as if its answer had been lost, and settled.
            if admitted % 2 == 0:
                await quotas.reserve(request)
                await quotas.settle(hold, 1)
                await quotas.settle(hold, 1)
            admitted += 1

    admitted = await asyncio.gather(*(ask(task) for task in range(NUM_TASKS)))
    await quotas.close()
    return sum(admitted)


if __name__ == "__main__":
    sys.stdout.write(str(asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))))
