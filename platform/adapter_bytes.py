"""Removal of adapters' bytes from the store, for whoever finishes a deletion."""

from loraplex.adapters.opened_store import open_store
from loraplex.adapters.registry.storage_use import Remove
from loraplex.platform.settings import Settings
from loraplex.platform.threads import in_thread


def removal(settings: Settings) -> Remove:
    """Removes a digest from the settings' store. Raises OSError where the store refuses."""
    store = open_store(settings.adapters_url, settings.data_dir, settings.adapter_cache_bytes)

    async def remove(digest: str) -> None:
        await in_thread(lambda: store.remove(digest))

    return remove
