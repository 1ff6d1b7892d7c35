"""How requests say in which way tokens are chosen and when an answer ends."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from loraplex.platform.api.bodies import Schema, shown_name
from loraplex.platform.sampling import SamplingOptions

MAX_STOPS = 4
MAX_STOP_CHARS = 512
MAX_STOP_TOKEN_IDS = 64
MAX_BIASED_TOKENS = 1024
MAX_BIAS = 100


def _stops(value: object) -> object:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("type", "must be a string or an array of strings")
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError(
            "length", "at most {limit} strings are possible", {"limit": MAX_STOPS}
        )
    if not all(1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise PydanticCustomError(
            "length", "each string needs 1 to {limit} characters", {"limit": MAX_STOP_CHARS}
        )
    return tuple(stops)


def _stop_token_ids(value: object) -> object:
    # `type` and not `isinstance`: true is no token id.
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise PydanticCustomError("type", "must be an array of token ids")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise PydanticCustomError(
            "length", "at most {limit} token ids are possible", {"limit": MAX_STOP_TOKEN_IDS}
        )
    return tuple(value)


def _logit_bias(value: object) -> object:
    if not isinstance(value, dict):
        raise PydanticCustomError("type", "must be an object of token ids and numbers")
    if len(value) > MAX_BIASED_TOKENS:
        raise PydanticCustomError(
            "length", "at most {limit} tokens are possible", {"limit": MAX_BIASED_TOKENS}
        )
    return tuple(_bias(key, bias) for key, bias in value.items())


def _bias(key: str, bias: object) -> tuple[int, float]:
    # One spelling for each id, so that no token is there twice; longer ones cannot be ids.
    if not (key.isascii() and key.isdecimal() and len(key) < 20 and str(int(key)) == key):
        raise PydanticCustomError(
            "key", "'{key}' is not a token id, such as '1234'", {"key": shown_name(key)}
        )
    if not isinstance(bias, int | float) or isinstance(bias, bool) or not abs(bias) <= MAX_BIAS:
        raise PydanticCustomError(
            "range",
            "the bias of '{key}' must be a number from -{limit} to {limit}",
            {"key": key, "limit": MAX_BIAS},
        )
    return int(key), float(bias)


class SamplingFields(Schema):
    """Fields of both completion routes; `top_k` and those after `seed` are extensions."""

    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[tuple[tuple[int, float], ...], BeforeValidator(_logit_bias)] = ()
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] = 1.0
    stop_token_ids: Annotated[tuple[int, ...], BeforeValidator(_stop_token_ids)] = ()
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0

    def options(self, top_logprobs: int | None) -> SamplingOptions:
        """The same in the platform's own terms, with what each route says of log-probabilities."""
        return SamplingOptions(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            top_logprobs=top_logprobs,
            given=frozenset(self.model_fields_set),
        )
