"""Long prompts beside running requests, and the context to its last token, on real tiny models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine import build
from tests.engine.architectures import ARCHITECTURES
from transformers import AutoModelForCausalLM, PreTrainedConfig

from loraplex.adapters.residency import Residency
from loraplex.engine.config import ModelConfig
from loraplex.engine.core import Engine, StepReport
from loraplex.engine.events import Events
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.model import load_model
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.runner import ModelRunner
from loraplex.engine.transfers import Transfers

MAX_STEP_TOKENS = 256
LONG = 8000


class Served:
    """A tiny model behind a real engine, driven by hand."""

    def __init__(self, folder: Path, block_size: int = 16) -> None:
        model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
        self.max_model_len = model.max_model_len
        num_blocks = -(-self.max_model_len // block_size) + 100
        config = build.config(
            num_blocks=num_blocks,
            block_size=block_size,
            max_step_tokens=MAX_STEP_TOKENS,
            max_waiting_tokens=LONG,
            max_model_len=self.max_model_len,
        )
        self.mailbox, residency = Mailbox(), Residency(0)
        self.transfers = Transfers(build.Source(lambda digest: None), self.mailbox.wake)
        self.engine = Engine(
            self.mailbox,
            build.scheduler(config, residency),
            residency,
            self.transfers,
            ModelRunner(model, num_blocks, block_size),
            build.sizes,
            lambda: 0.0,
        )

    def submit(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0, seed=0)
        self.mailbox.put(
            Submit(
                request_id=request_id,
                tenant="t",
                adapter=None,
                prompt=tuple(prompt),
                sampling=sampling,
            )
        )


def tokens_of(events: Events) -> dict[str, list[int]]:
    return {tokens.request_id: list(tokens.ids) for tokens in events.tokens}


def random_prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(2, 320, (length,), generator=generator).tolist()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[object]:
    made = []

    def make(config: PreTrainedConfig) -> Served:
        served = Served(tiny_models.save_model(tmp_path / "tiny", config))
        made.append(served)
        return served

    yield make
    for served in made:
        served.transfers.close()


def test_a_prompt_of_8000_tokens_lets_every_running_request_have_its_token_in_every_step(
    make: object, tmp_path: Path
) -> None:
    served = make(tiny_models.llama_config(num_hidden_layers=2, max_position_embeddings=16384))
    running = {f"running {length}" for length in (1, 7, 30)}
    for name in running:
        served.submit(name, random_prompt(int(name.split()[1])), max_tokens=100)
    assert tokens_of(served.engine.step().events).keys() == running
    prompt = random_prompt(LONG)
    served.submit("long", prompt, max_tokens=1)
    reports: list[StepReport] = []
    while not reports or "long" not in tokens_of(reports[-1].events):
        reports.append(served.engine.step())
        plan = reports[-1].plan
        sizes = {chunk.request_id: len(chunk.token_ids) for chunk in plan.chunks}
        assert plan.num_tokens <= MAX_STEP_TOKENS
        assert sizes.items() >= dict.fromkeys(running, 1).items()
        assert tokens_of(reports[-1].events).keys() >= running
    assert len(reports) == -(-LONG // (MAX_STEP_TOKENS - len(running)))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    with torch.no_grad():
        last = reference(torch.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[0, 0]
    first, second = last.topk(2).values.tolist()
    assert first - second > 1e-3  # so that rounding cannot choose
    assert tokens_of(reports[-1].events)["long"] == [int(last.argmax())]


@pytest.mark.parametrize("name", ["Llama", "GPT-2"])  # rotary and absolute positions
def test_prompt_and_output_fill_the_context_to_its_last_token(name: str, make: object) -> None:
    served = make(ARCHITECTURES[name].config)
    length = served.max_model_len - 6
    served.submit("fits", random_prompt(length), max_tokens=6)
    served.submit("too long", random_prompt(length), max_tokens=7)
    reports = [served.engine.step() for _ in range(6)]
    (rejected,) = reports[0].events.rejected
    assert (rejected.request_id, rejected.code) == ("too long", "refused")
    assert f"at most {served.max_model_len} fit" in rejected.message
    assert [list(tokens_of(report.events)) for report in reports] == [["fits"]] * 6
    (finished,) = reports[-1].events.finished
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 6)
