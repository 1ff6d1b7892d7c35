"""Policies of engines in the field that order by arrival and differ in whom they pass over."""

from collections.abc import Iterator

from loraplex.adapters.residency import State
from loraplex.engine.admission import WAITS_FOR_COPIES, AdmissionView, Blocked, FirstComeFirstServed
from loraplex.engine.request import Request


class SkipScan(FirstComeFirstServed):
    """Requests whose adapter finds no room are passed over, for as long as it takes.

    As in vLLM (https://github.com/vllm-project/vllm/pull/15422): requests for adapters in memory
    overtake all others, for ever if enough of them come.
    """

    def blocked(self, request: Request, by: Blocked) -> None:  # noqa: ARG002  of the protocol
        """Go on behind whatever has to do with adapters."""
        self._goes_on = by in {*WAITS_FOR_COPIES, Blocked.ADAPTER_MEMORY}


class DrainThreshold(SkipScan):
    """Skip-scan, but an adapter that has found no room for `threshold_s` empties another's.

    As SGLang's drainer (https://github.com/sgl-project/sglang/pull/17913) is described: of the
    adapters in memory, the one whose running requests are predicted to end first gets no new
    requests, until the waiting adapter is in.
    """

    def __init__(self, threshold_s: float = 2.0) -> None:
        super().__init__()
        self._threshold_s = threshold_s
        self._running: dict[str, Request] = {}
        self._draining: set[object] = set()

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """In order of arrival, but for requests of adapters that are being drained."""
        self._draining = self._to_drain(now, view)
        for request in super().candidates(now, view):
            if request.adapter is not None and request.adapter in self._draining:
                continue
            yield request

    def admitted(self, request: Request) -> None:
        """Remember that it runs."""
        super().admitted(request)
        self._running[request.key] = request

    def ended(self, request: Request) -> None:
        """It runs no more."""
        del self._running[request.key]

    def _to_drain(self, now: float, view: AdmissionView) -> set[object]:
        """As many adapters in memory as adapters have waited too long."""
        starved = {
            request.adapter
            for request in self._waiting.values()
            if now - request.submission.arrival_s > self._threshold_s
            and view.adapter_state(request) is State.ABSENT
        }
        if not starved:
            return set()
        left_ms: dict[object, float] = {}
        for request in self._running.values():
            run_ms = view.predicted_run_ms(request)
            left_ms[request.adapter] = max(left_ms.get(request.adapter, 0.0), run_ms)
        left_ms.pop(None, None)
        kept = {adapter for adapter in self._draining if adapter in left_ms}
        others = sorted((a for a in left_ms if a not in kept), key=left_ms.__getitem__)
        return kept | set(others[: max(0, len(starved) - len(kept))])
