"""How many uploads may come at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from loraplex.platform.errors import TooManyUploads


class UploadSlots:
    """Bounds uploads whose bytes come in this gateway: each holds a connection and a file."""

    def __init__(self, max_uploads: int, max_tenant_uploads: int) -> None:
        self._max_uploads = max_uploads
        self._max_tenant_uploads = max_tenant_uploads
        self._running: Counter[str] = Counter()

    @contextmanager
    def taken(self, tenant_id: str) -> Iterator[None]:
        """Hold one for a tenant. Raises TooManyUploads."""
        if self._running[tenant_id] >= self._max_tenant_uploads:
            raise TooManyUploads(
                f"{self._max_tenant_uploads} uploads of yours are running; try again when one is "
                "through."
            )
        if self._running.total() >= self._max_uploads:
            raise TooManyUploads("Too many uploads are running; try again in a moment.")
        self._running[tenant_id] += 1
        try:
            yield
        finally:
            self._running[tenant_id] -= 1
            if not self._running[tenant_id]:
                del self._running[tenant_id]
