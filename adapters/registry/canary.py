"""Which requests of an alias run on its canary."""

import hashlib

_NUM_BITS = 64


def takes_canary(tenant_id: str, model: str, sticky: str, percent: int) -> bool:
    """True for `percent` of all texts `sticky`, the same ones whoever asks and whenever.

    Each text has a place between 0 and 100, and those below `percent` are in: raising it takes
    nobody out. Places of another tenant's or alias's requests are drawn anew, so that not the same
    users meet every canary.
    """
    sha256 = hashlib.sha256()
    for part in (tenant_id, model, sticky):
        data = part.encode("utf-8", "surrogatepass")
        sha256.update(len(data).to_bytes(8) + data)
    place = int.from_bytes(sha256.digest()[: _NUM_BITS // 8])
    return place * 100 < percent << _NUM_BITS
