"""What the time of a step depends on, as numbers that are known before it runs. No torch."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EDGES = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
"""Numbers of tokens at which hardware may start another wave of tiles; which of them do, is
learned."""

_SCALES = np.array([1.0, 256.0, 64.0, 1e5, 1.0, 256.0**2, 256.0 * 1024, 64.0, 8.0, 1e8])
_SMOOTH_TERMS = (
    *("constant_ms", "token_ms", "decode_ms", "kv_token_ms", "prompts_ms"),
    *("squared_ms", "context_ms", "rank_ms", "adapter_ms", "byte_ms"),
)
_EDGES = np.array(EDGES)
NUM_SMOOTH = len(_SCALES)
NUM_FEATURES = NUM_SMOOTH + len(EDGES)


class Row(NamedTuple):
    """What one chunk of a step asks of the machine."""

    num_tokens: int
    """Rows of the forward pass; 1 for a decode."""
    start: int
    """Tokens of its request that are in the KV cache already."""
    rank: float
    """Its part of its adapter's rank: rank ÷ chunks of this step on that adapter; 0 for base."""
    is_decode: bool


class Rows(NamedTuple):
    """The same for all of a step: decodes, which are most, as arrays."""

    start: Floats
    """[n], of decodes."""
    rank: Floats
    """[n]"""
    chunks: Sequence[Row]
    """All others."""

    def __len__(self) -> int:
        return len(self.start) + len(self.chunks)

    def held_tokens(self) -> Floats:
        """Tokens that each has in the KV cache after the step: decodes, then chunks."""
        of_decodes = self.start + 1.0
        if not self.chunks:
            return of_decodes
        of_chunks = [chunk.start + chunk.num_tokens for chunk in self.chunks]
        return np.concatenate((of_decodes, of_chunks))


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """One step, seen by the cost model."""

    num_tokens: int
    """Rows of the forward pass."""
    num_decodes: int
    """Chunks of requests that decode, one token each."""
    prefill_tokens: int
    """Tokens of all chunks of prompts: num_tokens - num_decodes."""
    prefill_squared: float
    """Sum over chunks of prompts of (tokens of the chunk)²."""
    prefill_context: float
    """Sum over chunks of prompts of tokens × tokens before the chunk."""
    kv_tokens: int
    """Tokens of context that decodes read."""
    sum_rank: float = 0.0
    """Sum of the ranks of the step's distinct adapters, or anything proportional to it, such as
    their bytes, as long as it is always the same."""
    num_adapters: int = 0
    """Distinct adapters of the step; the base model does not count."""
    bytes_in_flight: int = 0
    """Bytes of adapters that are being copied to the device beside the step."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], num_adapters: int = 0, bytes_in_flight: int = 0
    ) -> "StepFeatures":
        """Sum up the chunks of a step."""
        num_decodes = kv_tokens = prefill_tokens = 0
        squared = context = sum_rank = 0.0
        for num_tokens, start, rank, is_decode in rows:
            sum_rank += rank
            if is_decode:
                num_decodes += 1
                kv_tokens += start
            else:
                prefill_tokens += num_tokens
                squared += num_tokens * num_tokens
                context += num_tokens * start
        return cls(
            num_tokens=num_decodes + prefill_tokens,
            num_decodes=num_decodes,
            prefill_tokens=prefill_tokens,
            prefill_squared=squared,
            prefill_context=context,
            kv_tokens=kv_tokens,
            sum_rank=sum_rank,
            num_adapters=num_adapters,
            bytes_in_flight=bytes_in_flight,
        )

    def with_chunk(self, num_tokens: int, start: int) -> "StepFeatures":
        """Return the step with one more chunk of a prompt, on an adapter that it has already."""
        return replace(
            self,
            num_tokens=self.num_tokens + num_tokens,
            prefill_tokens=self.prefill_tokens + num_tokens,
            prefill_squared=self.prefill_squared + num_tokens * num_tokens,
            prefill_context=self.prefill_context + num_tokens * start,
        )


def vector(step: StepFeatures) -> Floats:
    """Features of a step, scaled to about 1: float64 of shape (NUM_FEATURES,)."""
    features = np.zeros(NUM_FEATURES)
    features[:NUM_SMOOTH] = (
        1.0,
        step.num_tokens,
        step.num_decodes,
        step.kv_tokens,
        step.prefill_tokens > 0,
        step.prefill_squared,
        step.prefill_context,
        step.sum_rank,
        step.num_adapters,
        step.bytes_in_flight,
    )
    features[:NUM_SMOOTH] /= _SCALES
    features[NUM_SMOOTH : NUM_SMOOTH + bisect_left(EDGES, step.num_tokens)] = 1.0
    return features


@dataclass(frozen=True, slots=True)
class CostTerms:
    """What each feature of a step costs, in ms; none is negative."""

    constant_ms: float
    token_ms: float
    decode_ms: float
    kv_token_ms: float
    prompts_ms: float
    """Of a step that holds any of a prompt: another path of attention, say."""
    squared_ms: float
    context_ms: float
    rank_ms: float
    adapter_ms: float
    byte_ms: float
    edge_ms: Floats
    """Beyond the first i edges together; shape (edges + 1,)."""

    @classmethod
    def of(cls, weights: Floats) -> "CostTerms":
        """From weights of `vector`'s features."""
        edges = np.concatenate(([0.0], weights[NUM_SMOOTH:].cumsum()))
        values = (weights[:NUM_SMOOTH] / _SCALES).tolist()
        return cls(**dict(zip(_SMOOTH_TERMS, values, strict=True)), edge_ms=edges)

    def step_ms(self, step: StepFeatures) -> float:
        """Time of one step."""
        return (
            self._fixed_ms(step)
            + (self.prompts_ms if step.prefill_tokens else 0.0)
            + self.token_ms * step.num_tokens
            + self.squared_ms * step.prefill_squared
            + self.context_ms * step.prefill_context
            + float(self.edge_ms[bisect_left(EDGES, step.num_tokens)])
        )

    def chunks_ms(self, step: StepFeatures, sizes: Floats, start: int, longest: float) -> Floats:
        """Times of a step with one more chunk of each of k sizes, of prompts of at most `longest`
        tokens; shapes (k,)."""
        num_tokens = sizes + step.num_tokens
        fixed = (
            self._fixed_ms(step)
            + self.prompts_ms
            + self.squared_ms * step.prefill_squared
            + self.context_ms * step.prefill_context
        )
        ms = num_tokens * self.token_ms
        ms += sizes * (np.minimum(sizes, longest) * self.squared_ms + self.context_ms * start)
        ms += self.edge_ms[np.searchsorted(_EDGES, num_tokens)]
        ms += fixed
        return ms

    def rows_ms(self, rows: Rows) -> Floats:
        """What each adds to its step, decodes, then chunks; the constant is divided equally."""
        share_ms = self.constant_ms / max(1, len(rows))
        decodes_ms = rows.start * self.kv_token_ms
        decodes_ms += rows.rank * self.rank_ms
        decodes_ms += share_ms + self.token_ms + self.decode_ms
        if not rows.chunks:
            return decodes_ms
        num_prompts = sum(not chunk.is_decode for chunk in rows.chunks)
        prompt_ms = self.prompts_ms / max(1, num_prompts)
        chunks_ms = [
            share_ms + self._chunk_ms(chunk) + (0.0 if chunk.is_decode else prompt_ms)
            for chunk in rows.chunks
        ]
        return np.concatenate((decodes_ms, chunks_ms))

    def _chunk_ms(self, chunk: Row) -> float:
        num_tokens, start, rank, is_decode = chunk
        ms = num_tokens * self.token_ms + rank * self.rank_ms
        if is_decode:
            return ms + start * self.kv_token_ms + self.decode_ms
        return ms + num_tokens * (start * self.context_ms + num_tokens * self.squared_ms)

    def _fixed_ms(self, step: StepFeatures) -> float:
        return (
            self.constant_ms
            + self.decode_ms * step.num_decodes
            + self.kv_token_ms * step.kv_tokens
            + self.rank_ms * step.sum_rank
            + self.adapter_ms * step.num_adapters
            + self.byte_ms * step.bytes_in_flight
        )
