"""The text of keys: `<prefix>_<key id>_<secret><checksum>`, and the hash that is stored of it.

The checksum lets a typo be refused without asking the database, and scanners find leaked keys.
"""

import hashlib
import hmac
import re
import zlib
from dataclasses import dataclass, field

from loraplex.tenants.errors import KeyMalformed
from loraplex.tenants.ids import Entropy

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_BYTES, _ID_CHARS = 12, 17
_SECRET_BYTES, _SECRET_CHARS = 32, 43
_CHECKSUM_CHARS = 6
_FORMAT = re.compile(
    rf"([a-z]+)_([0-9A-Za-z]{{{_ID_CHARS}}})_[0-9A-Za-z]{{{_SECRET_CHARS}}}"
    rf"([0-9A-Za-z]{{{_CHECKSUM_CHARS}}})"
)
_SECRETS = re.compile(rf"((?:lpx|lpxadm)_[0-9A-Za-z]{{{_ID_CHARS}}}_)[0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key; `text` is shown to its owner once and kept nowhere."""

    key_id: str
    text: str = field(repr=False)


def random_key(prefix: str, entropy: Entropy) -> MintedKey:
    """Make a key of random bytes."""
    return compose(prefix, entropy(_ID_BYTES), entropy(_SECRET_BYTES))


def derived_key(prefix: str, message: bytes, pepper: bytes) -> MintedKey:
    """Make the one key that the deployment's secret determines for this message."""
    derived = hmac.digest(pepper, message, hashlib.sha512)
    return compose(prefix, derived[:_ID_BYTES], derived[-_SECRET_BYTES:])


def compose(prefix: str, id_bytes: bytes, secret_bytes: bytes) -> MintedKey:
    """Spell out a key of 12 bytes of id and 32 bytes of secret."""
    key_id = _base62(int.from_bytes(id_bytes), _ID_CHARS)
    body = f"{prefix}_{key_id}_{_base62(int.from_bytes(secret_bytes), _SECRET_CHARS)}"
    return MintedKey(key_id, body + _checksum(body))


def renewed_key(prefix: str, key_id: str, entropy: Entropy) -> MintedKey:
    """Make another secret for the key of this id."""
    body = f"{prefix}_{key_id}_{_base62(int.from_bytes(entropy(_SECRET_BYTES)), _SECRET_CHARS)}"
    return MintedKey(key_id, body + _checksum(body))


def parse(prefix: str, text: str) -> str:
    """Return the key id of a well-formed key of this prefix.

    Raises:
        KeyMalformed: it is none, or has a typo.
    """
    match = _FORMAT.fullmatch(text)
    if match is not None and match[1] != prefix:
        raise KeyMalformed(f"This key begins with {match[1]}_; here one of {prefix}_ is needed.")
    if match is None:
        raise KeyMalformed(f"The key is malformed: it should look like {prefix}_<id>_<secret>.")
    if match[3] != _checksum(text[:-_CHECKSUM_CHARS]):
        raise KeyMalformed("The key is malformed: its checksum is wrong, so it has a typo.")
    return match[2]


def without_secrets(text: str) -> str:
    """Return a text with the secrets of all keys in it left out, for messages that repeat what
    somebody sent."""
    return _SECRETS.sub(r"\1…", text)


def key_hash(text: str, pepper: bytes) -> str:
    """Return what is stored of a key."""
    # The secret has 256 random bits: there is nothing to guess that a slow hash would protect.
    return hmac.digest(pepper, b"loraplex key hash\0" + text.encode(), hashlib.sha256).hex()


def is_key(text: str, stored_hash: str, pepper: bytes) -> bool:
    """True if the hash is this key's; takes the same time whatever differs."""
    return hmac.compare_digest(stored_hash, key_hash(text, pepper))


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_CHARS)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
