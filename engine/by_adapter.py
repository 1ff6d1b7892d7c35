"""Which open choices need an adapter: found without a look at all others."""

from collections.abc import Iterable, Iterator

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.request import Request


class ByAdapter:
    """Choices by the adapter that they run on; those of the base model are left out."""

    def __init__(self) -> None:
        self._requests: dict[AdapterKey, dict[str, Request]] = {}

    def add(self, request: Request) -> None:
        """Take a choice; it must be new."""
        if request.adapter is not None:
            self._requests.setdefault(request.adapter, {})[request.key] = request

    def remove(self, request: Request) -> None:
        """Forget a choice that was added."""
        if request.adapter is not None:
            requests = self._requests[request.adapter]
            del requests[request.key]
            if not requests:
                del self._requests[request.adapter]

    def of(self, adapters: Iterable[AdapterKey | None]) -> Iterator[Request]:
        """Those on any of these adapters, of each in the order in which they were added; none of
        the base model."""
        for adapter in adapters:
            if adapter is not None:
                yield from self._requests.get(adapter, {}).values()
