"""Tenants' weights as gateways tell them, each of which may know an older one than another."""

from collections import OrderedDict

from loraplex.engine.protocol import Submit

MAX_TENANTS = 16_384
"""Tenants whose weights are kept; of others the next request tells it again."""


class TenantWeights:
    """The newest weight of each tenant, whichever gateway's request comes last."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def tell(self, submit: Submit) -> None:
        """Take a request's word, unless a newer one is known."""
        known = self._newest.get(submit.tenant)
        if known is None or submit.weight_version >= known[0]:
            self._newest[submit.tenant] = (submit.weight_version, submit.weight)
        self._newest.move_to_end(submit.tenant)
        if len(self._newest) > MAX_TENANTS:
            self._newest.popitem(last=False)

    def of(self, submit: Submit) -> float:
        """The weight of the request's tenant: its own word, if none is kept any more."""
        known = self._newest.get(submit.tenant)
        return submit.weight if known is None else known[1]
