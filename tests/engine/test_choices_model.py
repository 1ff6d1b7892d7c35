"""Choices over a real model and its KV cache, and log-probabilities as transformers has them."""

from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine import build
from tests.engine.linear_costs import KnownLengths, LinearCosts

from loraplex.adapters.residency import Residency
from loraplex.engine.admission import FirstComeFirstServed
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.plan import Logprobs
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.request import Piece
from loraplex.engine.runner import ModelRunner
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.seeds import choice_seed

PROMPT = tuple(range(5, 18))


class Recorder:
    """Text that is none, and the log-probabilities that came with each token."""

    def __init__(self, submit: Submit) -> None:
        self.stopped = False
        self.logprobs: list[Logprobs | None] = []

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:
        self.logprobs.append(logprobs)
        return Piece()

    def end(self) -> Piece:
        return Piece()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("model"), tiny_models.llama_config())


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return ModelRunner(load_model(ModelConfig(folder, "tiny", "cpu", "float32")), 40, 4)


def run(
    runner: ModelRunner, *submits: Submit, num_blocks: int = 40
) -> tuple[dict[tuple[str, int], list[int]], list[Recorder], int]:
    """Outputs by request and choice, what each choice's text was told, and preemptions."""
    texts: list[Recorder] = []

    def new_text(submit: Submit) -> Recorder:
        texts.append(Recorder(submit))
        return texts[-1]

    config = build.config(num_blocks=num_blocks)
    scheduler = Scheduler(
        config,
        Residency(0),
        FirstComeFirstServed(),
        new_text,
        frozenset(),
        LinearCosts(),
        KnownLengths(),
    )
    for submit in submits:
        scheduler.add(submit, now=0.0)
    outputs: dict[tuple[str, int], list[int]] = {}
    num_preempted = 0
    while scheduler.has_work:
        plan = scheduler.plan(now=0.0)
        num_preempted += plan.num_preempted
        events = scheduler.commit(plan, runner.run(runner.build(plan, {})))
        scheduler.check()
        assert not events.failed
        for tokens in events.tokens:
            outputs.setdefault((tokens.request_id, tokens.choice), []).extend(tokens.ids)
    return outputs, texts, num_preempted


def submit(request_id: str, **sampling: object) -> Submit:
    values = {"max_tokens": 9, "seed": 3} | sampling
    return build.submit(request_id, prompt=PROMPT, sampling=Sampling(**values))


@pytest.mark.parametrize("num_blocks", [40, 12])
def test_choices_are_what_requests_with_their_seeds_are(
    runner: ModelRunner, num_blocks: int
) -> None:
    options = {"max_tokens": 24, "repetition_penalty": 1.3, "presence_penalty": 0.5, "top_p": 0.95}
    outputs, _, num_preempted = run(runner, submit("a", n=4, **options), num_blocks=num_blocks)
    assert bool(num_preempted) == (num_blocks == 12)
    for choice in range(4):
        alone, _, _ = run(runner, submit("b", seed=choice_seed(3, choice), **options))
        assert outputs["a", choice] == alone["b", 0]
    assert len({tuple(output) for output in outputs.values()}) == 4


def test_log_probabilities_are_those_of_transformers(folder: Path, runner: ModelRunner) -> None:
    outputs, (text,), _ = run(runner, submit("a", temperature=2.0, top_k=50, top_logprobs=20))
    output = outputs["a", 0]
    model = tiny_models.load_reference(folder)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *output]])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(dim=-1)
    for place, found in enumerate(text.logprobs):
        assert found is not None
        assert found.drawn == pytest.approx(float(expected[place, output[place]]), abs=1e-4)
        values, ids = expected[place].topk(20)
        assert [token_id for token_id, _ in found.top] == ids.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-4)
