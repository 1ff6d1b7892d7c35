"""What the whole platform means by an adapter: an immutable digest, and who uses it."""

from typing import NamedTuple


class AdapterKey(NamedTuple):
    """Key of residency, device slots and KV blocks: one tenant's use of one adapter version.

    Equal bytes are shared in storage only. Were residency keyed by digest alone, a tenant could
    learn from its latency that another tenant had warmed the same adapter.
    """

    tenant: str
    digest: str
