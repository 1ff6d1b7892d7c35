"""Who will likely start before a request, where tenants share by weight."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from loraplex.engine.fairness import FairShare
from loraplex.engine.request import Request
from loraplex.engine.tenant_queue import TenantQueue


def ahead_by_share(
    request: Request,
    committed: Mapping[str, Request],
    tenants: Mapping[str, TenantQueue],
    share: FairShare,
    cost_ms: Callable[[Request], float],
) -> Iterator[Request]:
    """Those whose loads are paid; those of its tenant that go before it; and of each other tenant
    as much as is that one's share until then, or its turn already.

    `committed` are by key, `tenants` the queues of all others that wait, by tenant.
    """
    if request.key in committed:
        return
    yield from committed.values()
    submit = request.submission.submit
    own = tenants.get(submit.tenant)
    mine = [] if own is None else list(own.before(request))
    yield from mine
    until_ms = (sum(map(cost_ms, mine)) + share.debt_ms(submit.tenant)) / submit.weight
    for tenant, queue in tenants.items():
        if tenant != submit.tenant and (until_ms > 0 or share.is_eligible(tenant)):
            yield from _first(queue.requests(), until_ms * queue.weight, cost_ms)


def _first(
    requests: Iterable[Request], share_ms: float, cost_ms: Callable[[Request], float]
) -> Iterator[Request]:
    """The first ones, until they have cost so much."""
    for request in requests:
        yield request
        share_ms -= cost_ms(request)
        if share_ms <= 0:
            return
