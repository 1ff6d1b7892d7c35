"""What programs have had of the machine: requests of one tenant that belong together."""

from collections import OrderedDict

from loraplex.engine.request import Request

_MAX_PROGRAMS = 4096


class Programs:
    """Time of each program's requests, of those that run by prediction; of the newest programs."""

    def __init__(self) -> None:
        self._attained_ms: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._expected_ms: dict[str, float] = {}
        """Of requests, from their charge to their end."""

    def attained_ms(self, tenant: str, program: str) -> float:
        """What a program has had."""
        return self._attained_ms.get((tenant, program), 0.0)

    def charged(self, request: Request, expected_ms: float) -> None:
        """A request begins, and is expected to use so much."""
        if request.submission.submit.program:
            self._expected_ms[request.key] = expected_ms
            self._attain(request, expected_ms)

    def closed(self, request: Request, used_ms: float) -> None:
        """It has ended, or begins anew, and has used so much."""
        if request.submission.submit.program:
            self._attain(request, used_ms - self._expected_ms.pop(request.key))

    def _attain(self, request: Request, ms: float) -> None:
        submit = request.submission.submit
        key = submit.tenant, submit.program
        self._attained_ms[key] = self._attained_ms.pop(key, 0.0) + ms
        if len(self._attained_ms) > _MAX_PROGRAMS:
            self._attained_ms.popitem(last=False)
