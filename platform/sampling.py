"""What clients may ask of sampling, and what a model and this platform make of it."""

from dataclasses import dataclass, fields, replace
from typing import Self

from loraplex.adapters.profile import Profile
from loraplex.engine.protocol import Sampling
from loraplex.platform.errors import InvalidRequest

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Options for which an adapter may have defaults of its own."""
MAX_SEED = (1 << 63) - 1
"""The engine's seeds are not negative; a negative one of a client loses its sign bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """The options of a request as its body has them, each in the range that its schema allows.

    See `engine.protocol.Sampling`, whose fields they become.
    """

    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    """None draws one."""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    min_tokens: int
    top_logprobs: int | None
    given: frozenset[str] = frozenset()
    """Options that the request itself names; the others have the platform's defaults."""

    def refuse_unknown(self, model: str, vocab_size: int, max_choices: int) -> None:
        """Raise InvalidRequest for what this model or this platform does not have; an adapter may
        make its vocabulary larger."""
        if self.n > max_choices:
            raise InvalidRequest(f"n is {self.n}; 1 to {max_choices} are possible.", "n")
        for field, token_ids in (
            ("logit_bias", (token_id for token_id, _ in self.logit_bias)),
            ("stop_token_ids", iter(self.stop_token_ids)),
        ):
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise InvalidRequest(
                        f"{field} has token id {token_id}, which is not in the vocabulary of "
                        f"{model}; ids are 0 to {vocab_size - 1}.",
                        field,
                    )

    def completed_by(self, profile: Profile) -> Self:
        """The same with an adapter's defaults for what the request does not name, and its ends."""
        defaults = {
            name: value
            for name in SAMPLING_DEFAULTS
            if name not in self.given and (value := getattr(profile, name)) is not None
        }
        ends = () if self.ignore_eos else profile.stop_token_ids
        stop_token_ids = tuple(dict.fromkeys((*self.stop_token_ids, *ends)))
        return replace(self, stop_token_ids=stop_token_ids, **defaults)

    def to_sampling(self, max_tokens: int, drawn_seed: int) -> Sampling:
        """The same for the engine. Raises InvalidRequest if `min_tokens` exceeds the cap."""
        if self.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, but the output has at most {max_tokens} tokens; "
                f"set it to 0 to {max_tokens}, or raise max_tokens.",
                "min_tokens",
            )
        # All by name: an option that were forgotten here would be accepted and ignored.
        names = {field.name for field in fields(self)} - {"given"}
        options = {name: getattr(self, name) for name in names}
        seed = drawn_seed if self.seed is None else self.seed
        return Sampling(**options | {"max_tokens": max_tokens, "seed": seed & MAX_SEED})
