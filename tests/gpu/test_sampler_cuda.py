"""A seed gives the same tokens on a GPU as on a CPU, whatever is asked for."""

import pytest
import torch

from loraplex.engine.plan import Penalties, SampleSpec
from loraplex.engine.sampler import sample
from loraplex.engine.sampling_rows import SampledSpecs, sampling_rows

pytestmark = pytest.mark.gpu

VOCAB, ROWS = 50_000, 96
HOWS = [
    {"temperature": 0.0},
    {},
    {"top_k": 50},
    {"top_p": 0.9},
    {"min_p": 0.02, "temperature": 1.5},
    {"top_k": 400, "top_p": 0.95, "min_p": 0.01, "num_top_logprobs": 5},
    {"logit_bias": ((5, 3.0), (7, -100.0)), "forbidden_ids": (1, 2)},
    {"temperature": 0.0, "penalties": Penalties(1.3, 0.5, 0.2, (3, 4), (5, 5, 6))},
]


def spec(row: int) -> SampleSpec:
    how = {"temperature": 1.0, "top_p": 1.0, "top_k": 0} | HOWS[row % len(HOWS)]
    return SampleSpec(seed=row, position=row, **how)


def test_draws_of_a_gpu_are_those_of_a_cpu() -> None:
    logits = 3 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0))
    logits = logits.bfloat16().float()  # with many equals, as real logits have
    logits[9, 7] = float("nan")
    specs = [spec(row) for row in range(ROWS)]
    host, device = torch.device("cpu"), torch.device("cuda")
    rows = SampledSpecs.of(specs)
    on_cpu = sample(logits, sampling_rows(rows, VOCAB, host))
    on_gpu = sample(logits.to(device), sampling_rows(rows, VOCAB, device))
    assert on_gpu.token_ids.tolist() == on_cpu.token_ids.tolist()
    assert on_gpu.logprobs.keys() == on_cpu.logprobs.keys()
    for row, found in on_gpu.logprobs.items():
        assert found.drawn == pytest.approx(on_cpu.logprobs[row].drawn)
