"""Offers policies of the new protocol to a scheduler of the old one."""

from collections.abc import Iterator

from loraplex.adapters.residency import State
from loraplex.engine.admission import AdmissionPolicy, AdmissionView, Blocked
from loraplex.engine.request import Request, Status


class OldProtocol:
    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self.view: AdmissionView
        self._current: Request | None = None
        self._running: dict[str, Request] = {}

    def finish(self, keys: list[str]) -> None:
        for key in keys:
            if key in self._running:
                self.policy.ended(self._running.pop(key))

    def add(self, request: Request) -> None:
        self.policy.add(request, request.submission.arrival_s)

    def put_back(self, request: Request) -> None:
        self.policy.ended(self._running.pop(request.key))
        self.policy.put_back(request)

    def remove(self, request: Request) -> None:
        if request is self._current:
            self._current = None
            self._running[request.key] = request
            self.policy.admitted(request)
        else:
            self.policy.remove(request)

    def __len__(self) -> int:
        return len(self.policy)

    def candidates(self, now: float) -> Iterator[Request]:
        try:
            for request in self.policy.candidates(now, self.view):
                state = self.view.adapter_state(request)
                self._current = request
                yield request
                self._block(request, state)
        finally:
            if self._current is not None:
                self._block(self._current, self.view.adapter_state(self._current))

    def _block(self, request: Request, state: State) -> None:
        if self._current is None:
            return
        self._current = None
        if state is State.RESIDENT:
            by = Blocked.STEP if self.view.fits(request) else Blocked.KV_BLOCKS
        elif self.view.adapter_state(request) is State.LOADING:
            by = Blocked.LOADING
        else:
            by = Blocked.ADAPTER_MEMORY
        self.policy.blocked(request, by)
