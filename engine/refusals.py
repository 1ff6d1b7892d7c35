"""Requests that could never run, and why."""

from collections.abc import Container
from math import inf

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.errors import AdapterOverCap, EngineOverloaded, RequestRefused
from loraplex.engine.protocol import Submit
from loraplex.engine.request import choice_key


def refuse_open(submit: Submit, submissions: Container[str], choices: Container[str]) -> None:
    """Raise RequestRefused if the request, or one that has the name of a choice of it, is open."""
    keys = (choice_key(submit.request_id, choice) for choice in range(submit.sampling.n))
    if submit.request_id in submissions or any(key in choices for key in keys):
        raise RequestRefused(f"request {submit.request_id} is open already", "request_id")


def refuse_impossible(
    submit: Submit, config: SchedulerConfig, adapter_bytes: int, residency: Residency
) -> None:
    """Raise RequestRefused, naming the field, if the request exceeds what the worker has in all."""
    sampling = submit.sampling
    num_tokens = len(submit.prompt) + sampling.max_tokens
    if not submit.prompt or sampling.max_tokens < 1:
        raise RequestRefused("prompt and max_tokens must hold at least one token", "prompt")
    if not 1 <= sampling.n <= config.max_waiting_requests:
        raise RequestRefused(
            f"n is {sampling.n}; the queue holds 1 to {config.max_waiting_requests} choices", "n"
        )
    if num_tokens > config.max_model_len:
        raise RequestRefused(
            f"prompt and max_tokens are {num_tokens} tokens together; at most "
            f"{config.max_model_len} fit",
            "max_tokens",
        )
    if len(submit.prompt) > config.max_waiting_tokens:
        raise RequestRefused(
            f"the prompt has {len(submit.prompt)} tokens; the queue holds at most "
            f"{config.max_waiting_tokens}",
            "prompt",
        )
    last_start = 0 if submit.adapter is None else len(submit.prompt) - 1
    if not 0 <= submit.adapter_start <= last_start:
        raise RequestRefused(
            f"adapter_start is {submit.adapter_start}; this request's adapter can begin to act "
            f"at 0 to {last_start}",
            "adapter_start",
        )
    if not 0 < submit.weight < inf:
        raise RequestRefused(f"the weight is {submit.weight}; it must be above 0", "weight")
    _refuse_too_large(submit, adapter_bytes, residency)


def _refuse_too_large(submit: Submit, adapter_bytes: int, residency: Residency) -> None:
    if submit.adapter is None:
        return
    key = AdapterKey(submit.tenant, submit.adapter)
    cap, pinned_bytes = residency.cap(key.tenant), residency.other_pinned_bytes(key)
    if cap is not None and adapter_bytes > cap - pinned_bytes:
        beside = f", {pinned_bytes} of them for other adapters that it pins" if pinned_bytes else ""
        raise AdapterOverCap(
            f"the adapter needs {adapter_bytes} bytes of the worker's memory, and its tenant may "
            f"hold {cap} (adapter_cap_bytes){beside}; train it smaller, or ask the operator for "
            "more",
            "model",
        )
    if adapter_bytes > residency.most_loadable_bytes(key):
        # What the worker has, and what others are promised of it, is no tenant's business.
        raise RequestRefused(
            f"the adapter needs {adapter_bytes} bytes of the worker's memory, more than can be "
            "free beside what is promised to others; the operator can change pins and floors",
            "model",
        )


def refuse_ids(submit: Submit, vocab_size: int) -> None:
    """Raise RequestRefused, naming the field, if it has an id that is not below `vocab_size`."""
    sampling = submit.sampling
    for field, ids in (
        ("prompt", submit.prompt),
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", [token_id for token_id, _ in sampling.logit_bias]),
    ):
        # An id beyond the tables would break the whole step, not this request alone.
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise RequestRefused(f"{field} has a token id outside 0 to {vocab_size - 1}", field)


def refuse_overload(
    submit: Submit, config: SchedulerConfig, num_waiting: int, num_waiting_tokens: int
) -> None:
    """Raise EngineOverloaded if the queue has no room for the request."""
    if (
        num_waiting + submit.sampling.n > config.max_waiting_requests
        or num_waiting_tokens + len(submit.prompt) > config.max_waiting_tokens
    ):
        raise EngineOverloaded(
            f"{num_waiting} requests with {num_waiting_tokens} prompt tokens wait already; retry "
            "later",
            retry_after_s=1.0,
        )
