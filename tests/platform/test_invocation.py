"""From which token on an activated adapter acts, as PEFT finds it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from peft.tuners.lora.variants import calculate_alora_offsets

from loraplex.platform.invocation import adapter_start


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ((7, 8, 1, 2), 0),
        ((1, 7, 8), 1),
        ((7, 8, 3, 7, 8, 3), 3),
        ((7, 7, 8), 1),
        ((8, 7), None),
        ((7,), None),
        ((7 * 256, 8 * 256, 1), None),
    ],
)
def test_the_last_invocation_in_the_prompt_counts_from_its_first_token_on(
    prompt: tuple[int, ...], start: int | None
) -> None:
    assert adapter_start(prompt, (7, 8)) == start


def test_an_adapter_without_invocation_acts_from_the_first_token_on() -> None:
    assert adapter_start((1, 2), ()) == 0


@given(
    st.lists(st.sampled_from([0, 1, 256]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, 256]), min_size=1, max_size=3),
)
def test_it_acts_from_where_peft_lets_it_act(prompt: list[int], invocation: list[int]) -> None:
    config = LoraConfig(task_type="CAUSAL_LM", alora_invocation_tokens=invocation)
    (offset,) = calculate_alora_offsets({"x": config}, "x", torch.tensor([prompt]))
    start = adapter_start(prompt, invocation)
    assert start == (None if offset is None else len(prompt) - offset)
