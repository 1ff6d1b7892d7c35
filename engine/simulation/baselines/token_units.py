"""This engine's own policy, counting VTC's tokens in the place of the machine's time.

It tells what of a difference to VTC and DLPM comes from the unit that is shared: their measure of
fairness counts tokens too.
"""

from collections.abc import Callable, Iterator, Mapping, Set

from loraplex.adapters.residency import State
from loraplex.engine.admission import AdmissionView
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.request import Request
from loraplex.engine.simulation.passing_on import PassingOn

_OUTPUT_PRICE = 2.0
_SETTINGS = FairSettings(quantum_ms=1000.0, overdraft_ms=2000.0, max_skips=16, max_open=1000)
"""In tokens."""


class _InTokens:
    """A view that tells costs in tokens. Loads are free, as they are to VTC."""

    def __init__(self, view: AdmissionView) -> None:
        self._view = view
        self.adapter_state: Callable[[Request], State] = view.adapter_state
        self.fits = view.fits
        self.cached_tokens = view.cached_tokens
        self.predicted_run_ms = view.predicted_run_ms
        self.predicted_wait_ms = view.predicted_wait_ms

    @property
    def kept(self) -> Set[str]:
        return self._view.kept

    @property
    def adapters_version(self) -> int:
        return self._view.adapters_version

    def predicted_ms(self, request: Request) -> float:
        self._view.predicted_ms(request)  # which expects an output length
        left = max(1.0, request.expected_tokens - request.num_output_tokens)
        return request.num_tokens - self.cached_tokens(request) + _OUTPUT_PRICE * left

    def load_ms(self, request: Request) -> float:  # noqa: ARG002  of the protocol
        return 0.0

    def restore_ms(self, request: Request) -> float:
        return max(0.0, request.num_lost_tokens - self.cached_tokens(request))


class TokenFairAdmission(PassingOn):
    """See above; all but the unit is `FairAdmission`'s."""

    def __init__(self) -> None:
        super().__init__(FairAdmission(_SETTINGS))
        self._running: dict[str, Request] = {}
        self._told: dict[str, int] = {}
        """Output tokens of those that run that have been charged."""

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """With costs in tokens."""
        self._tell()
        yield from self._policy.candidates(now, _InTokens(view))

    def admitted(self, request: Request) -> None:
        """Its prompt is used at once."""
        super().admitted(request)
        self._running[request.key] = request
        self._told[request.key] = request.num_output_tokens
        self._policy.measured({request.key: float(request.num_tokens)})

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Time is nothing to it."""

    def ended(self, request: Request) -> None:
        """Tell what it has used."""
        self._tell()
        del self._running[request.key], self._told[request.key]
        super().ended(request)

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:  # noqa: ARG002  of the protocol
        """For what is to be computed again, in tokens."""
        return self._policy.makes_room(request, victim, float(victim.num_computed_tokens))

    def _tell(self) -> None:
        used = {}
        for key, request in self._running.items():
            new = request.num_output_tokens - self._told[key]
            if new:
                used[key] = _OUTPUT_PRICE * new
                self._told[key] += new
        self._policy.measured(used)
