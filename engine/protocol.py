"""Messages on the stream between a gateway and a worker, grouped by receiver. No torch.

One frame is a 4-byte little-endian length followed by one MessagePack message. All text that a
person typed stays out of logs: messages define no printing of their own.
"""

from typing import Literal

import msgspec

from loraplex.engine.journal_protocol import (
    JournalQuery,
    JournalReport,
    JournalState,
    JournalTotals,
    JournalTotalsQuery,
)
from loraplex.engine.residency_protocol import (
    Pins,
    ResidencyQuery,
    ResidencyReport,
    TierQuery,
    TierReport,
    Warm,
)
from loraplex.engine.usage import Usage as Usage  # noqa: PLC0414  a part of the protocol, told from here

PROTOCOL_VERSION = 8
MAX_FRAME_BYTES = 64 * 1024 * 1024

FinishReason = Literal["stop", "length", "abort"]
ADAPTER_MISMATCH = "adapter_mismatch"
"""Code of `Failed` for an adapter that does not fit the worker's base model."""
ServiceTier = Literal["priority", "default", "flex"]
"""Before others of its tenant; as they come; on what nobody else can use."""
RejectionCode = Literal[
    "overloaded", "late", "refused", "over_cap", "draining", "journal_unavailable"
]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one request are chosen and when it ends; `engine.sampler` says in which
    order. The defaults change nothing."""

    max_tokens: int
    """Hard cap on generated tokens of each choice, ≥ 1; always explicit, so that a reservation is
    a bound."""
    n: int = 1
    """Choices: independent answers to one prompt, ≥ 1."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Above 0; on prompt and output."""
    presence_penalty: float = 0.0
    """On the output alone; so is `frequency_penalty`."""
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids of the vocabulary, each once, and what is added to their logits."""
    seed: int
    """Random numbers are a function of seed, choice and position only."""
    stop: tuple[str, ...] = ()
    """Stop strings; the text that matches is not returned."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a choice as the model's own end does; their text is not returned."""
    ignore_eos: bool = False
    """True goes on after the model's own end."""
    min_tokens: int = 0
    """The first so many tokens end no choice: neither tokens nor stop strings among them do."""
    top_logprobs: int | None = None
    """0 to 20 of the most likely tokens are reported beside each token; None reports nothing."""


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
    adapter_start: int = 0
    """Position in the prompt from which on the adapter acts: tokens before are the base model's,
    all generated ones are the adapter's."""
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: Sampling
    weight: float = 1.0
    """The tenant's share, relative to other tenants."""
    weight_version: int = 0
    """Of the tenant's record that the weight was read from: the newest holds, whichever gateway's
    request comes last."""
    accepted_at_s: float = 0.0
    """When its gateway accepted it, by that one's clock, as Unix time: the journal's sums go by
    it, as the ledger's do; 0 takes the worker's clock."""
    service_tier: ServiceTier = "default"
    program: str = ""
    """What the request is a part of, in the tenant's own words: of programs that wait, the one that
    has had least of the machine goes first."""
    ttft_deadline_ms: float | None = None
    """Refuse it, at once or while it waits, when its first token cannot come so soon after its
    arrival; None refuses nothing."""
    ttft_spent_ms: float = 0.0
    """What its gateway has used up of the time that the client gave it."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client left: free the request within one step. Answered by `Finished`."""

    request_id: str


class Why(msgspec.Struct, frozen=True, tag="why"):
    """Ask why an open request waits. Answered by `Explained`, unless the request has ended."""

    request_id: str


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Nobody will ask for this adapter of the tenant any more: free all its memory, once no
    request uses it or waits for it. Not answered; may be repeated."""

    tenant: str
    adapter: str
    """Digest."""


class MetricsQuery(msgspec.Struct, frozen=True, tag="metrics_query"):
    """Ask for the worker's metrics in the Prometheus text format."""

    query_id: int


class Verify(msgspec.Struct, frozen=True, tag="verify", kw_only=True):
    """Test an adapter before anybody may call it. Answered by `Verified`; several take turns."""

    query_id: int
    tenant: str
    """Whose adapter it is: its tests are this tenant's work, and so is the memory that it takes."""
    adapter: str
    """Digest of the stored adapter."""
    weight: float = 1.0
    """The tenant's share, as in `Submit`."""
    may_use_peft: bool = True
    """False compares with the engine's own plain computation alone."""


class EndVerification(msgspec.Struct, frozen=True, tag="end_verification"):
    """Nobody waits any more for the answer to a `Verify`."""

    query_id: int


GatewayMessage = (
    Hello
    | Submit
    | Abort
    | Why
    | Drop
    | Pins
    | Warm
    | MetricsQuery
    | ResidencyQuery
    | TierQuery
    | JournalQuery
    | JournalTotalsQuery
    | Verify
    | EndVerification
)


class LinearShapes(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter can be attached to; see `adapters.base_shapes.BaseShapes`."""

    linears: dict[str, tuple[int, int]]
    """Module path to (out, in)."""
    embeddings: dict[str, tuple[int, int]]
    """Module path to (rows, width)."""
    heads: tuple[str, ...]
    token_embedding: str | None = None
    is_tied: bool = False
    biases: dict[str, int] = {}
    parameters: dict[str, tuple[int, ...]] = {}


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
    retry_after_s: float | None = 1.0
    """None: trying again would not help."""


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token that might have come at a position."""

    token: str
    """As text: half a character shows as U+FFFD, a special token by its name."""
    data: bytes | None
    """What it adds to the text, in UTF-8; None for special tokens, which add nothing."""
    logprob: float
    """Natural logarithm of its probability in the model's own distribution: before temperature,
    filters, penalties and bias."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token that came, and what was likely in its place."""

    drawn: Alternative
    start: int
    """Characters of the choice's text before it; of a token that is half a character, before that
    character."""
    top: tuple[Alternative, ...]
    """Most likely first."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """New output of one choice: `ids[0]` is its output token number `sequence` (from 0).

    A step makes hundreds; none can be part of a cycle, so that collections need not look at them.
    """

    request_id: str
    choice: int = 0
    sequence: int
    ids: tuple[int, ...]
    text: str
    """Whole characters only; may be empty while a character or a stop string is incomplete."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens whose text is returned, each once that is sure; so they may come later than
    `ids`, and a token that a stop string cut off never comes."""
    finish_reason: Literal["stop", "length"] | None = None
    """Why the choice ended with these tokens; None while it goes on."""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """All choices have ended; nothing follows."""

    request_id: str
    reason: FinishReason
    """`abort`, or `length` if that is why any choice ended, or `stop`."""
    usage: Usage
    """The prompt once, as far as it was computed, and the output of all choices."""
    queue_ms: float = 0.0
    """From arrival at the worker to the first step that computed any of it, or to its end."""
    waited_ms: dict[str, float] = {}
    """How long its first choice waited, by reason (`engine.waits.Reason`); waiting after a
    preemption counts too."""
    output_digest: bytes = b""
    """16 bytes, of the ids of all output (`journal_format.output_digest`), as the worker's journal
    has it; empty from a worker that keeps none."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The request failed alone; nothing follows."""

    request_id: str
    code: str
    message: str
    usage: Usage
    output_digest: bytes = b""
    """As in `Finished`."""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """How an open request stands."""

    request_id: str
    state: Literal["waiting", "running"]
    """Of its first choice that has not ended."""
    waits_for: str | None
    """One of `engine.waits.Reason`, while it waits."""
    waited_ms: dict[str, float]
    """As in `Finished`, so far."""


class StepFrame(msgspec.Struct, frozen=True, tag="step", kw_only=True):
    """All that one engine step has for one gateway."""

    epoch: str
    step: int
    rejected: tuple[Rejected, ...] = ()
    tokens: tuple[Tokens, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()
    explained: tuple[Explained, ...] = ()


class MetricsText(msgspec.Struct, frozen=True, tag="metrics_text"):
    """Answer to `MetricsQuery`."""

    query_id: int
    text: str


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter's own requests gave, compared with a reference; logarithms are natural."""

    method: Literal["peft", "reference"]
    """PEFT in a process of its own, or the engine's plain computation of the same adapter."""
    passed: bool
    detail: str
    """What differs; or what is worth knowing of a test that passed; may be empty."""
    num_tokens: int
    """Tokens that the served path drew."""
    num_compared: int
    """Of these, those that rounding cannot exchange: the reference's two largest logits are far
    enough apart."""
    max_abs_logprob_diff: float
    """Of the drawn tokens' log-probabilities, served and reference."""
    tolerance: float
    """The difference that is allowed, where it is largest."""
    max_abs_change: float
    """Of the same log-probabilities, with the adapter and without, both by the reference."""
    changes_output: bool
    """False for an adapter that leaves the base model as it is, on these prompts."""
    took_ms: float
    versions: dict[str, str]
    """Of `torch`, and of `peft` and `transformers` where they were the reference."""


class Verified(msgspec.Struct, frozen=True, tag="verified", kw_only=True):
    """Answer to `Verify`."""

    query_id: int
    report: SelfTest | None
    """None if the test could not be made, which says nothing about the adapter."""
    message: str = ""
    """Why there is no report."""
    is_over_cap: bool = False
    """True if that is since the tenant may not hold so much in memory."""


WorkerMessage = (
    Welcome
    | StepFrame
    | MetricsText
    | ResidencyReport
    | TierReport
    | JournalReport
    | JournalTotals
    | JournalState
    | Verified
)
