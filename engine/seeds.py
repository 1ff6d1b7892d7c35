"""Randomness as a pure function: of a seed, a choice's index and a position, and nothing else.

Whatever shares a batch with a choice, and however often it is preempted, its numbers stay.
"""

import struct
from hashlib import blake2b


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a pure function of seed (modulo 2⁶⁴) and position: 53 bits of a hash."""
    return (_hash(seed, position, b"loraplex-sample") >> 11) * 2.0**-53


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of a request's choices: what a request of its own needs to give the same.

    Choice 0 has the request's seed, so that a request gives its first answer whatever its `n`.
    """
    return seed if choice == 0 else _hash(seed, choice, b"loraplex-choice")


def _hash(seed: int, number: int, purpose: bytes) -> int:
    message = struct.pack("<QQ", seed % 2**64, number)
    return int.from_bytes(blake2b(message, digest_size=8, person=purpose).digest(), "little")
