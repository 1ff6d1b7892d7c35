"""Builders of requests and schedulers."""

from collections.abc import Callable

from tests.engine.linear_costs import KnownLengths, LinearCosts

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.residency import Residency
from loraplex.adapters.sizes import AdapterSizes
from loraplex.engine.admission import AdmissionPolicy, FirstComeFirstServed
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.plan import Logprobs
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.request import Piece
from loraplex.engine.scheduler import Scheduler

EOS = 999


class PlainText:
    """Text of the simulated model: each token is its number; `stop` may be one number."""

    def __init__(self, submit: Submit) -> None:
        self._stop = submit.sampling.stop
        self.stopped = False

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:
        self.stopped = str(token_id) in self._stop
        return Piece("" if self.stopped else f"{token_id} ")

    def end(self) -> Piece:
        return Piece()


def sizes(digest: str) -> AdapterSizes:
    """As many bytes as the digest has characters."""
    return adapter_sizes(len(digest))


def adapter_sizes(num_bytes: int, vocab_size: int | None = None) -> AdapterSizes:
    """Of an adapter that takes this much on the device."""
    return AdapterSizes(num_bytes, num_bytes, vocab_size)


def config(**changes: object) -> SchedulerConfig:
    values = {
        "num_blocks": 16,
        "block_size": 4,
        "max_step_tokens": 16,
        "max_running": 8,
        "max_waiting_requests": 32,
        "max_waiting_tokens": 1024,
        "max_model_len": 48,
        "vocab_size": 1000,
    }
    return SchedulerConfig(**(values | changes))


def scheduler(
    scheduler_config: SchedulerConfig | None = None,
    residency: Residency | None = None,
    policy: AdmissionPolicy | None = None,
    costs: LinearCosts | None = None,
    lengths: KnownLengths | None = None,
) -> Scheduler:
    return Scheduler(
        scheduler_config or config(),
        residency or Residency(100),
        FirstComeFirstServed() if policy is None else policy,
        PlainText,
        frozenset({EOS}),
        costs or LinearCosts(),
        lengths or KnownLengths(),
    )


class Source:
    """An `AdapterSource` whose adapters are what `load` makes of their digests, of one layer."""

    def __init__(self, load: Callable[[str], object]) -> None:
        self.read = load

    def place(self, on_host: object, progress: LoadProgress) -> object:
        progress.open(1, None)
        progress.add_layer()
        return on_host


def submit(
    request_id: str, num_prompt_tokens: int = 3, max_tokens: int = 4, **changes: object
) -> Submit:
    start = sum(map(ord, request_id))
    prompt = tuple((start + i) % 500 for i in range(num_prompt_tokens))
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, seed=0)
    values = {"tenant": "t", "adapter": None, "prompt": prompt, "sampling": sampling} | changes
    return Submit(request_id=request_id, **values)
