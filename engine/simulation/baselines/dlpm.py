"""DLPM (https://arxiv.org/abs/2501.14312): deficits over longest prefix matches."""

from collections.abc import Iterator

from loraplex.engine.admission import AdmissionView, FirstComeFirstServed
from loraplex.engine.request import Request


class DeficitPrefixMatch(FirstComeFirstServed):
    """Requests in order of their cached prefix, of tenants with a positive deficit.

    Tokens are charged as they are computed: prompts at admission, but for what is cached of them,
    outputs as decoded. When a whole pass finds nobody, every tenant without credit is given a
    quantum. Of prompts that a load does not tell nothing is cached; then arrival is the order.
    """

    def __init__(
        self, quantum: float = 1000.0, prompt_price: float = 1.0, output_price: float = 2.0
    ) -> None:
        super().__init__()
        self._quantum = quantum
        self._prompt_price = prompt_price
        self._output_price = output_price
        self._credits: dict[str, float] = {}
        self._running: dict[str, Request] = {}
        self._cached_tokens = 0
        """Of the candidate."""
        self._charged: dict[str, int] = {}
        """Output tokens of running requests that are charged."""

    def add(self, request: Request, now: float) -> None:
        """Take a request; its tenant starts without credit."""
        super().add(request, now)
        self._credits.setdefault(request.submission.submit.tenant, 0.0)

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:  # noqa: ARG002  of the protocol
        """Requests of tenants with credit, by cached prefix; then quanta, then again."""
        self._goes_on = True
        for request in self._running.values():
            self._charge_output(request)
        while self._waiting:
            found = False
            waiting = sorted(self._waiting.values(), key=view.cached_tokens, reverse=True)
            for request in waiting:
                if self._credits[request.submission.submit.tenant] <= 0:
                    continue
                found = True
                self._cached_tokens = view.cached_tokens(request)
                yield request
                if not self._goes_on:
                    return
            if found:
                return
            for tenant, credit in self._credits.items():
                if credit <= 0:
                    self._credits[tenant] = credit + self._quantum

    def admitted(self, request: Request) -> None:
        """Charge its prompt, as far as it is to be computed."""
        super().admitted(request)
        self._running[request.key] = request
        self._charged[request.key] = request.num_output_tokens
        num_tokens = max(0, request.num_prompt_tokens - self._cached_tokens)
        self._charge(request, self._prompt_price * num_tokens)

    def ended(self, request: Request) -> None:
        """Charge what is not charged yet."""
        self._charge_output(request)
        del self._running[request.key], self._charged[request.key]

    def _charge_output(self, request: Request) -> None:
        new = request.num_output_tokens - self._charged[request.key]
        self._charged[request.key] += new
        self._charge(request, self._output_price * new)

    def _charge(self, request: Request, price: float) -> None:
        self._credits[request.submission.submit.tenant] -= price
