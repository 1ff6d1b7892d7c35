"""Prompts of a test: the same for all adapters, but for the tokens that an adapter names."""

import pytest

from loraplex.adapters.config import AdapterConfig, TrainableTokens
from loraplex.engine.self_test.prompts import NUM_OUTPUT_TOKENS, PROMPT_LENGTHS, make_prompts


def test_prompts_have_their_lengths_and_known_tokens() -> None:
    prompts = make_prompts(AdapterConfig(), 320, 256)
    assert tuple(len(prompt.ids) for prompt in prompts) == PROMPT_LENGTHS
    assert all(0 <= token < 320 for prompt in prompts for token in prompt.ids)
    assert len(set(prompts[2].ids)) > 20
    assert prompts == make_prompts(AdapterConfig(), 320, 256)


def test_tokens_that_an_adapter_retrained_are_in_prompts() -> None:
    tokens = (TrainableTokens(None, (3, 5)), TrainableTokens("lm_head", (5, 400)))
    first, *others = make_prompts(AdapterConfig(trainable_tokens=tokens), 320, 256)
    for prompt in others:
        start = prompt.ids.index(3)
        assert prompt.ids[start : start + 2] == (3, 5)
        assert 400 not in prompt.ids
    assert len(first.ids) == PROMPT_LENGTHS[0]


def test_tokens_that_an_adapter_added_are_in_prompts() -> None:
    _, *others = make_prompts(AdapterConfig(), 320, 256, num_added=2)
    for prompt in others:
        start = prompt.ids.index(320)
        assert prompt.ids[start : start + 2] == (320, 321)


def test_an_adapter_acts_from_its_invocation_on() -> None:
    config = AdapterConfig(invocation_tokens=(11, 12, 13))
    for prompt in make_prompts(config, 320, 256):
        start = prompt.adapter_start
        assert prompt.ids[start : start + 3] == (11, 12, 13)
        assert 0 < start < len(prompt.ids) - 3


def test_no_prompt_is_long_whatever_an_adapter_names() -> None:
    config = AdapterConfig(
        trainable_tokens=(TrainableTokens(None, tuple(range(300))),),
        invocation_tokens=tuple(range(65_536)),
    )
    for prompt in make_prompts(config, 320, 131_072):
        assert len(prompt.ids) <= 113


@pytest.mark.parametrize("max_model_len", [1, 9, 20])
def test_prompts_leave_room_in_a_short_context(max_model_len: int) -> None:
    for prompt in make_prompts(AdapterConfig(), 320, max_model_len):
        assert 1 <= len(prompt.ids) <= max(1, max_model_len - NUM_OUTPUT_TOKENS)
