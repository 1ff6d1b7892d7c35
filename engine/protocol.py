"""Messages on the stream between a gateway and a worker, grouped by receiver. No torch.

One frame is a 4-byte little-endian length followed by one MessagePack message. All text that a
person typed stays out of logs: messages define no printing of their own.
"""

from typing import Literal

import msgspec

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024

FinishReason = Literal["stop", "length", "abort"]
ADAPTER_MISMATCH = "adapter_mismatch"
"""Code of `Failed` for an adapter that does not fit the worker's base model."""
RejectionCode = Literal["overloaded", "refused", "draining"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one request are chosen and when it ends."""

    max_tokens: int
    """Hard cap on generated tokens, ≥ 1; always explicit, so that a reservation is a bound."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    seed: int
    """Random numbers are a function of seed and position only."""
    stop: tuple[str, ...] = ()
    """Stop strings; the text that matches is not returned."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First frame of a gateway."""

    protocol: int
    token: str
    """Shared secret of gateway and worker; empty where the socket's permissions suffice."""


class Submit(msgspec.Struct, frozen=True, tag="submit", kw_only=True):
    """A request to run. The worker knows a tenant as an opaque id, an adapter as a digest."""

    request_id: str
    tenant: str
    adapter: str | None
    """Digest of the adapter version pinned at admission; None runs the base model."""
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: Sampling
    weight: float = 1.0
    """The tenant's share, relative to other tenants."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client left: free the request within one step. Answered by `Finished`."""

    request_id: str


class MetricsQuery(msgspec.Struct, frozen=True, tag="metrics_query"):
    """Ask for the worker's metrics in the Prometheus text format."""

    query_id: int


GatewayMessage = Hello | Submit | Abort | MetricsQuery


class LinearShapes(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter can be attached to; see `adapters.base_shapes.BaseShapes`."""

    linears: dict[str, tuple[int, int]]
    """Module path to (out, in)."""
    embeddings: tuple[str, ...]
    heads: tuple[str, ...]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway must know of the base model, so that it needs no model files."""

    name: str
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    vocab_size: int
    tokenizer_json: bytes
    chat_template: str | None
    special_tokens: dict[str, str]
    """`bos_token`, `eos_token`, … as the chat template names them."""
    dtype: str
    device: str
    shapes: LinearShapes | None = None
    """None from an engine that takes no adapters; then none can be uploaded."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", kw_only=True):
    """First frame of a worker."""

    protocol: int
    epoch: str
    """Identity of this run of the worker; a restart has another."""
    model: ModelInfo


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The request never ran."""

    request_id: str
    code: RejectionCode
    message: str
    field: str = ""
    retry_after_s: float = 1.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What ran, counted by the engine in tokens."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens served from the prefix cache."""
    completion_tokens: int


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """New output of one request: `ids[0]` is output token number `sequence` (from 0)."""

    request_id: str
    sequence: int
    ids: tuple[int, ...]
    text: str
    """Whole characters only; may be empty while a character or a stop string is incomplete."""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The request ended; nothing follows. `text` is the tail that was held back."""

    request_id: str
    reason: FinishReason
    usage: Usage
    text: str = ""
    queue_ms: float = 0.0
    """From arrival at the worker to the first step that computed any of it, or to its end."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The request failed alone; nothing follows."""

    request_id: str
    code: str
    message: str
    usage: Usage


class StepFrame(msgspec.Struct, frozen=True, tag="step", kw_only=True):
    """All that one engine step has for one gateway."""

    epoch: str
    step: int
    rejected: tuple[Rejected, ...] = ()
    tokens: tuple[Tokens, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()


class MetricsText(msgspec.Struct, frozen=True, tag="metrics_text"):
    """Answer to `MetricsQuery`."""

    query_id: int
    text: str


WorkerMessage = Welcome | StepFrame | MetricsText
