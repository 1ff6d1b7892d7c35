"""The adapters' store of the settings, and removal from it for whoever finishes a deletion."""

from loraplex.adapters.opened_store import open_store
from loraplex.adapters.registry.storage_use import Remove
from loraplex.adapters.storage import Store
from loraplex.platform.settings import Settings
from loraplex.platform.threads import in_thread


def store_of(settings: Settings) -> Store:
    """The store that the settings name."""
    return open_store(settings.adapters_url, settings.data_dir, settings.adapter_cache_bytes)


def removal(settings: Settings) -> Remove:
    """Removes a digest from it. Raises OSError where the store refuses."""
    store = store_of(settings)

    async def remove(digest: str) -> None:
        await in_thread(lambda: store.remove(digest))

    return remove
