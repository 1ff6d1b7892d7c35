"""Who will likely start before a request that comes now, where tenants share by weight."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from math import ceil

from loraplex.engine.ahead_sample import Ahead, sampled, stride
from loraplex.engine.fairness import FairShare
from loraplex.engine.request import Request
from loraplex.engine.tenant_queue import TenantQueue

_MOST_OF_OTHER = 4
"""Requests that are looked at of each other tenant."""


def ahead_by_share(
    request: Request,
    committed: Mapping[str, Request],
    tenants: Mapping[str, TenantQueue],
    share: FairShare,
    cost_ms: Callable[[Request], float],
) -> Iterator[Ahead]:
    """Those whose loads are paid; those of its tenant that go before it; and of each other tenant
    as much as is that one's share until then, or its turn already.

    `committed` are by key, `tenants` the queues of all others that wait, by tenant.
    """
    yield from sampled(committed.values())
    submit = request.submission.submit
    own = tenants.get(submit.tenant)
    mine = [] if own is None else list(sampled(own.before(request)))
    yield from mine
    own_ms = sum(count * cost_ms(other) for other, count in mine)
    until_ms = (own_ms + share.debt_ms(submit.tenant)) / submit.weight
    every, stands_for = stride(len(tenants))
    for tenant, queue in islice(tenants.items(), 0, None, every):
        if tenant != submit.tenant and (until_ms > 0 or share.is_eligible(tenant)):
            for other, count in _first(queue.requests(), until_ms * queue.weight, cost_ms):
                yield other, count * stands_for


def _first(
    requests: Collection[Request], share_ms: float, cost_ms: Callable[[Request], float]
) -> Iterator[Ahead]:
    """The first ones, until they have cost so much; one at least."""
    for request, stands_for in sampled(requests, _MOST_OF_OTHER):
        each_ms = cost_ms(request)
        if stands_for * each_ms <= share_ms:
            count = stands_for
        else:
            count = min(stands_for, max(1, ceil(share_ms / each_ms)) if each_ms else 1)
        yield request, count
        share_ms -= count * each_ms
        if share_ms <= 0:
            return
