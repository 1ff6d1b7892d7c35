"""Compares what was served with what a reference makes of the same tokens. Pure Python."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

import msgspec

from loraplex.engine.self_test.prompts import ProbePrompt, TokenIds


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far the served path and a reference may be apart in one dtype."""

    margin: float
    """Logits that differ by less may change places, in units of the largest logit's amount; in
    float32 of a logit itself."""
    relative: float
    """Of a drawn token's log-probability, in units of the largest logit's amount (at least 1)."""
    is_margin_absolute: bool = False

    def allowed(self, position: "Position") -> float:
        """Largest difference of the log-probability that is allowed at a position."""
        return self.relative * max(1.0, position.max_abs_logit)

    def is_close_call(self, position: "Position") -> bool:
        """True where rounding may choose the reference's second token."""
        unit = 1.0 if self.is_margin_absolute else max(1.0, position.max_abs_logit)
        return position.margin <= self.margin * unit


TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(margin=1e-4, relative=1e-4, is_margin_absolute=True),
        "float16": Tolerance(margin=0.005, relative=0.005),
        "bfloat16": Tolerance(margin=0.02, relative=0.02),
    }
)
"""Against PEFT, SmolLM2-135M with four of the demo's adapters differed on a CPU by up to 8e-7 of
the largest logit in float32, and 0.008 in bfloat16."""


MAX_PLAUSIBLE_LOGIT = 1e4
"""Language models' are below some hundreds. Tolerances grow with it, so that beyond it they would
allow any log-probability."""


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """What the served path drew after one prompt, greedily."""

    prompt: ProbePrompt
    tokens: TokenIds
    logprobs: tuple[float, ...]
    """Of the tokens, in order; the last have none where they end within a character."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """What a reference says of one drawn token, after the same tokens before it."""

    is_finite: bool
    """False makes the rest meaningless."""
    best: int = 0
    """The token of the largest logit."""
    margin: float = 0.0
    """Largest logit minus second largest."""
    max_abs_logit: float = 0.0
    logprob: float = 0.0
    """Of the token that the served path drew."""
    base_logprob: float = 0.0
    """The same without the adapter."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of it; see `protocol.SelfTest`."""

    passed: bool
    detail: str
    num_tokens: int
    num_compared: int
    max_abs_logprob_diff: float
    tolerance: float
    max_abs_change: float


def compare(
    served: Sequence[ServedTokens],
    reference: Sequence[Sequence[Position]],
    tolerance: Tolerance,
) -> Comparison:
    """Compare token by token; `reference` has one entry per token of each of `served`."""
    positions = [position for of_prompt in reference for position in of_prompt]
    if not all(position.is_finite for position in positions):
        return unfit("the reference computes numbers that are not finite", len(positions))
    num_compared = sum(not tolerance.is_close_call(position) for position in positions)
    largest = max(position.max_abs_logit for position in positions)
    if not num_compared and largest > MAX_PLAUSIBLE_LOGIT:
        return unfit(
            f"nothing could be compared: logits with the adapter reach {largest:.3g}, and the two "
            "largest are never further apart than rounding may move them",
            len(positions),
        )
    faults = list(_faults(served, reference, tolerance))
    diffs = [
        abs(position.logprob - logprob)
        for each, of_prompt in zip(served, reference, strict=True)
        for position, logprob in zip(of_prompt, each.logprobs, strict=False)
    ]
    change = max(abs(p.logprob - p.base_logprob) for p in positions)
    allowed = max(map(tolerance.allowed, positions))
    return Comparison(
        passed=not faults,
        detail=faults[0] if faults else _remark(num_compared, change, allowed),
        num_tokens=len(positions),
        num_compared=num_compared,
        max_abs_logprob_diff=max(diffs, default=0.0),
        tolerance=allowed,
        max_abs_change=change,
    )


def unfit(detail: str, num_tokens: int = 0) -> Comparison:
    """The comparison of an adapter that cannot be computed."""
    return Comparison(
        passed=False,
        detail=detail,
        num_tokens=num_tokens,
        num_compared=0,
        max_abs_logprob_diff=0.0,
        tolerance=0.0,
        max_abs_change=0.0,
    )


def _faults(
    served: Sequence[ServedTokens],
    reference: Sequence[Sequence[Position]],
    tolerance: Tolerance,
) -> Iterator[str]:
    for number, (each, positions) in enumerate(zip(served, reference, strict=True), start=1):
        places = zip_longest(each.tokens, each.logprobs, positions)
        for place, (token, logprob, position) in enumerate(places, start=1):
            fault = _fault(token, logprob, position, tolerance)
            if fault:
                yield f"token {place} after test prompt {number} {fault}"


def _fault(
    token: int, logprob: float | None, position: Position, tolerance: Tolerance
) -> str | None:
    if token != position.best and not tolerance.is_close_call(position):
        return (
            f"is {token} as served and {position.best} by the reference, whose two largest logits "
            f"are {position.margin:.3g} apart"
        )
    allowed = tolerance.allowed(position)
    # Not the other way round, so that NaN is a fault.
    if logprob is not None and not abs(logprob - position.logprob) <= allowed:
        return (
            f"has log-probability {logprob:.6g} as served and {position.logprob:.6g} by the "
            f"reference, and {allowed:.3g} may be between them"
        )
    return None


def _remark(num_compared: int, change: float, allowed: float) -> str:
    remarks = (_remark_on_tokens(num_compared), _remark_on_change(change, allowed))
    return "; ".join(filter(None, remarks))


def _remark_on_tokens(num_compared: int) -> str:
    if num_compared:
        return ""
    return (
        "no token could be compared, only log-probabilities: at each place the reference's two "
        "largest logits are so close that rounding may choose"
    )


def _remark_on_change(change: float, allowed: float) -> str:
    if change == 0:
        return "the adapter changes nothing on the test prompts"
    if change <= allowed or math.isclose(change, allowed):
        return (
            f"the adapter changes log-probabilities by at most {change:.3g} on the test prompts, "
            "which is less than the test can see"
        )
    return ""
