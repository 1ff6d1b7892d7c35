"""Profiles of the adapters in use, kept in memory."""

from collections import OrderedDict

from loraplex.adapters.profile import Profile
from loraplex.adapters.registry.profiles import read_profile
from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.platform.prompts_of_engine import AdapterInUse
from loraplex.tenants.db import Database

MAX_PROFILES = 1024


class Profiles:
    """Reads profiles from the database once: what a digest names never changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, Profile] = OrderedDict()
        """Those used last at the end."""

    async def of(self, tenant_id: str, target: ResolvedModel) -> AdapterInUse | None:
        """The adapter of a request with its profile; None for the base model."""
        digest = target.digest
        if digest is None:
            return None
        if digest not in self._known:
            async with self._database.reader() as session:
                self._known[digest] = await read_profile(session, tenant_id, digest)
            while len(self._known) > MAX_PROFILES:
                self._known.popitem(last=False)
        self._known.move_to_end(digest)
        return AdapterInUse(tenant_id, target.name, digest, self._known[digest])
