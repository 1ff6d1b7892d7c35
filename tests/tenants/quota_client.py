"""A gateway's process as far as quotas see it: makes calls, and writes a line for each that ended.

Arguments: URL of the store, number of calls, a name of its own.
"""

import asyncio
import random
import sys
from datetime import UTC, datetime

from loraplex.tenants.errors import BudgetExhausted, QuotaExceeded
from loraplex.tenants.periods import Period
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.reservations import Amounts, Hold, Reservation
from loraplex.tenants.scoped_limits import BudgetPeriod, ScopedLimit

NUM_TASKS = 8
MAX_TOKENS = 200
MONTH = BudgetPeriod(Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)), 1)


def limits_for(num_calls: int) -> tuple[ScopedLimit, ...]:
    """Limits of four scopes, of which the budgets refuse a part of so many calls."""
    tokens, cost, much = num_calls * MAX_TOKENS // 8, num_calls * MAX_TOKENS // 5, 10**9
    return (
        ScopedLimit("tenant", "t", "tokens_per_month", tokens, tokens, budget=MONTH),
        ScopedLimit("project", "p", "cost_micros_per_month", cost, cost, budget=MONTH),
        ScopedLimit("key", "k", "tokens_per_minute", much, much),
        ScopedLimit("adapter", "a", "concurrency", 64, 64),
    )


async def run(url: str, num_calls: int, name: str, limits: tuple[ScopedLimit, ...]) -> None:
    """Make the calls from several tasks at once. A line says what a call used, or that it was
    refused."""
    quotas, chance = RedisQuotas.open(url), random.Random(name)
    numbers = iter(range(num_calls))

    async def call_in_turn() -> None:
        for number in numbers:
            worst = Amounts(chance.randint(1, MAX_TOKENS), 0, chance.randint(0, MAX_TOKENS))
            request = Reservation(f"{name}-{number}", "race", limits, worst)
            try:
                hold = await quotas.reserve(request)
            except (BudgetExhausted, QuotaExceeded) as error:
                sys.stdout.write(f"refused {error.limit.dimension}\n")
                continue
            sys.stdout.write(f"used {await end(hold)}\n")
            sys.stdout.flush()

    async def end(hold: Hold) -> int:
        """Settle or release, some calls twice, as if an answer had been lost."""
        worst = hold.reservation.worst
        if chance.random() < 0.3:
            await quotas.reserve(hold.reservation)
        if chance.random() < 0.1:
            await quotas.release(hold)
            return 0
        actual = Amounts(chance.randint(0, worst.input_tokens), 0, worst.cost_micros // 2)
        await quotas.settle(hold, actual)
        if chance.random() < 0.3:
            await quotas.settle(hold, actual)
        return actual.input_tokens

    await asyncio.gather(*(call_in_turn() for _ in range(NUM_TASKS)))
    await quotas.close()


if __name__ == "__main__":
    url, num_calls, num_of_all, name = sys.argv[1:]
    asyncio.run(run(url, int(num_calls), name, limits_for(int(num_of_all))))
