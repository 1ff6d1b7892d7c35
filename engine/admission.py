"""In which order waiting requests are offered to the scheduler."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from loraplex.engine.request import Request


class AdmissionPolicy(Protocol):
    """A small object that owns the waiting requests and their order."""

    def add(self, request: Request) -> None:
        """Take a request that has just arrived."""
        ...

    def put_back(self, request: Request) -> None:
        """Take a request that was running and lost its KV blocks."""
        ...

    def remove(self, request: Request) -> None:
        """Forget a request that was admitted, aborted or failed."""
        ...

    def candidates(self, now: float) -> Iterator[Request]:
        """Waiting requests in the order in which to try them; removal while iterating is safe."""
        ...

    def __len__(self) -> int: ...


class FirstComeFirstServed:
    """Order of arrival; a preempted request goes before all others."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        """Append at the end."""
        self._waiting[request.key] = request

    def put_back(self, request: Request) -> None:
        """Insert at the front: it was admitted before all that wait."""
        self._waiting[request.key] = request
        self._waiting.move_to_end(request.key, last=False)

    def remove(self, request: Request) -> None:
        """Forget it; it must be waiting."""
        del self._waiting[request.key]

    def candidates(self, now: float) -> Iterator[Request]:  # noqa: ARG002
        """All waiting requests, first come first."""
        return iter(list(self._waiting.values()))

    def __len__(self) -> int:
        return len(self._waiting)
