"""Removal of adapters' bytes from the store, for whoever finishes a deletion."""

from loraplex.adapters.registry.storage_use import Remove
from loraplex.adapters.storage import Store
from loraplex.platform.threads import in_thread


def removal(store: Store) -> Remove:
    """Removes a digest from the store. Raises OSError where that refuses."""

    async def remove(digest: str) -> None:
        await in_thread(lambda: store.remove(digest))

    return remove
