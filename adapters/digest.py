"""The identity of an adapter version: one hash over all that changes what it computes.

The formula is fixed for good (docs/adapters.md states it, a test pins it): other machines' stores,
KV keys and audit logs hold digests of years ago.
"""

import hashlib
import json
import re
from collections.abc import Iterable

from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.tensor_file import TensorEntry

_DOMAIN = b"loraplex adapter 1\x00"
_PROFILE_DOMAIN = b"loraplex adapter with profile 1\x00"
_BATCH_BYTES = 512 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AdapterHash:
    """SHA-256 over the canonical config and then the tensors, which must come sorted by name."""

    def __init__(self, config: AdapterConfig) -> None:
        self._sha256 = hashlib.sha256(_DOMAIN)
        self._sha256.update(_prefixed(canonical_config(config)))

    def start_tensor(self, entry: TensorEntry) -> None:
        """Add name, dtype and shape; the tensor's bytes follow through `add_bytes`."""
        self._sha256.update(tensor_prefix(entry))

    def add_tensors(self, tensors: Iterable[tuple[bytes, memoryview]]) -> None:
        """Add tensors whole: what `tensor_prefix` makes of each, and its bytes.

        Small ones are hashed together: hashlib lets other threads run only while it hashes more
        than a few KiB, and to get the interpreter back from them takes its time.
        """
        batch: list[bytes | memoryview] = []
        num_bytes = 0
        for prefix, data in tensors:
            batch.append(prefix)
            if len(data) < _BATCH_BYTES:
                batch.append(data)
                num_bytes += len(data)
            if max(num_bytes, len(data)) >= _BATCH_BYTES:
                self._sha256.update(b"".join(batch))
                batch, num_bytes = [], 0
                if len(data) >= _BATCH_BYTES:
                    self._sha256.update(data)
        self._sha256.update(b"".join(batch))

    def add_bytes(self, chunk: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the tensor, in the file's row-major little-endian order."""
        self._sha256.update(chunk)

    def hexdigest(self) -> str:
        """64 lower-case hexadecimal digits."""
        return self._sha256.hexdigest()


def tensor_prefix(entry: TensorEntry) -> bytes:
    """What the digest takes of a tensor before its bytes: name, dtype and shape."""
    sizes = _numbers([len(entry.shape), *entry.shape, entry.num_bytes])
    return _prefixed(entry.name.encode()) + _prefixed(entry.dtype.encode()) + sizes


def _prefixed(data: bytes) -> bytes:
    return _numbers([len(data)]) + data


def _numbers(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def canonical_config(config: AdapterConfig) -> bytes:
    """Compact JSON, keys sorted, of the fields that change the output and are not at their default.

    Ranks and modules are absent because the tensors' shapes and names already say them. Rules stay
    in order, since the first that matches wins.
    """
    fields: dict[str, object] = {}
    if config.alpha != 8:
        fields["lora_alpha"] = _number(config.alpha)
    if config.use_rslora:
        fields["use_rslora"] = True
    if config.alpha_pattern:
        fields["alpha_pattern"] = [[rule, _number(alpha)] for rule, alpha in config.alpha_pattern]
    if config.invocation_tokens:
        fields["alora_invocation_tokens"] = list(config.invocation_tokens)
    if config.trainable_tokens:
        fields["trainable_token_indices"] = [
            [tokens.module, list(tokens.indices)] for tokens in config.trainable_tokens
        ]
    if config.modules_to_save:
        fields["modules_to_save"] = sorted(config.modules_to_save)
    if config.target_parameters:
        fields["target_parameters"] = sorted(config.target_parameters)
    if config.ensure_weight_tying:
        fields["ensure_weight_tying"] = True
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def with_profile(digest: str, profile: bytes | None) -> str:
    """Digest of a version that keeps a profile beside the weights of this digest; that digest
    itself where it keeps none."""
    if profile is None:
        return digest
    length = len(profile).to_bytes(8, "little")
    return hashlib.sha256(_PROFILE_DOMAIN + bytes.fromhex(digest) + length + profile).hexdigest()


def is_digest(text: str) -> bool:
    """True for 64 lower-case hexadecimal digits, the only names that the store knows."""
    return _DIGEST.fullmatch(text) is not None


def _number(value: float) -> int | float:
    # 16 and 16.0 are one number and must not be two adapters.
    return int(value) if value == int(value) else value
