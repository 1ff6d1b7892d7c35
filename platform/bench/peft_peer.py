"""PEFT's mixed batch as the peer of a benchmark: a child process that is asked in between."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TypeVar

import msgspec
import torch

from loraplex.engine.model import LoadedModel
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.bench.errors import BenchFailed, BenchRefused
from loraplex.platform.bench.peft_messages import Batch, Done, Start, Started

T = TypeVar("T")


def require_peft() -> None:
    """Raise BenchRefused unless PEFT is installed."""
    if importlib.util.find_spec("peft") is None:
        raise BenchRefused(
            "PEFT, to which the engine is compared, is not installed: pip install "
            "'loraplex[train]', or leave it out with --no-peft"
        )


@dataclass(frozen=True, slots=True)
class PeftPeer:
    """A process that has the base model and all adapters loaded."""

    requests: IO[bytes]
    answers: IO[bytes]
    started: Started

    def run(self, batch: Batch) -> Done:
        """Wait until the batch is done. Raises BenchFailed if the process is gone."""
        return _ask(self.requests, self.answers, batch, Done)


@contextmanager
def running_peft(model: LoadedModel, adapters: Sequence[BenchAdapter]) -> Iterator[PeftPeer]:
    """Start the process and wait until it has loaded; it ends with the block."""
    start = Start(
        model=str(model.path.resolve()),
        adapters=[str(adapter.folder.resolve()) for adapter in adapters],
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        threads=torch.get_num_threads(),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "loraplex.platform.bench.peft_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            started = _ask(process.stdin, process.stdout, start, Started)
            yield PeftPeer(process.stdin, process.stdout, started)
        finally:
            process.kill()


def _ask(requests: IO[bytes], answers: IO[bytes], message: object, answer: type[T]) -> T:
    try:
        requests.write(msgspec.json.encode(message) + b"\n")
        requests.flush()
        line = answers.readline()
    except BrokenPipeError:
        line = b""
    if not line:
        raise BenchFailed("the PEFT process ended; what it says of that is above")
    return msgspec.json.decode(line, type=answer)
