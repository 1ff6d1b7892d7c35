"""`loraplex bench prefix`: what it saves to find a prompt in the KV cache, or on the host."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import BlockCopy, StepPlan
from loraplex.platform.base import load_base
from loraplex.platform.bench.decode import Ask, ask_all
from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.machine import Machine, describe_machine
from loraplex.platform.bench.subject import Subject
from loraplex.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class PrefixTimes:
    """One row of the result; medians."""

    prompt_tokens: int
    cold_ttft_ms: float
    """Of a prompt that nobody has asked before."""
    warm_ttft_ms: float
    """Of the same prompt, asked again."""
    ratio: float
    """Median of cold ÷ warm, each pair of one prompt."""
    swap_ms: float
    """Copying the keys and values of so many tokens to the host and back; the alternative is to
    compute them again, which takes about `cold_ttft_ms`."""


@dataclass(frozen=True, slots=True)
class PrefixBench:
    """An engine on the base model alone, of which one request runs at a time."""

    subject: Subject
    machine: Machine
    seed: int

    def measure(
        self, sizes: tuple[int, ...], repeats: int, on_progress: Callable[[str], None]
    ) -> Iterator[PrefixTimes]:
        """Time prompts of each size, every one first cold, then warm, then copied."""
        parts = self.subject.new_engine()
        try:
            ask_all(parts, [self._ask(max(sizes), 0)], 1)  # the first of all warms the machine up
            for size in sizes:
                cold_ms, warm_ms, swap_ms = [], [], []
                for repeat in range(repeats):
                    on_progress(f"{size} tokens: {repeat} of {repeats}")
                    ask = self._ask(size, repeat + 1)
                    cold_ms.append(ask_all(parts, [ask], 1).first_token_s * 1e3)
                    warm_ms.append(ask_all(parts, [ask], 1).first_token_s * 1e3)
                    swap_ms.append(self._swap_ms(size))
                pairs = zip(cold_ms, warm_ms, strict=True)
                yield PrefixTimes(
                    prompt_tokens=size,
                    cold_ttft_ms=round(statistics.median(cold_ms), 2),
                    warm_ttft_ms=round(statistics.median(warm_ms), 2),
                    ratio=round(statistics.median(cold / warm for cold, warm in pairs), 1),
                    swap_ms=round(statistics.median(swap_ms), 2),
                )
        finally:
            parts.transfers.close()

    def _ask(self, num_tokens: int, repeat: int) -> Ask:
        generator = np.random.default_rng([self.seed, num_tokens, repeat])
        vocab_size = self.subject.model.vocab_size
        return Ask(None, tuple(generator.integers(vocab_size, size=num_tokens).tolist()))

    def _swap_ms(self, num_tokens: int) -> float:
        """What lies in the blocks does not matter: it comes back as it was."""
        num_blocks = -(-num_tokens // self.subject.settings.block_size)
        blocks = tuple(range(num_blocks))
        copies = (BlockCopy("swapped", blocks, blocks),)
        started = perf_counter()
        self.subject.runner.copy(StepPlan(1, copies_out=copies))
        self.subject.runner.copy(StepPlan(1, copies_in=copies))
        if self.subject.model.device.type == "cuda":
            torch.cuda.synchronize()
        return (perf_counter() - started) * 1e3


def prepare_prefix_bench(
    settings: Settings, longest: int, seed: int, load_average: float
) -> PrefixBench:
    """Load the model, and give it room for a few prompts of the longest size.

    Raises BenchRefused if the model does not hold one.
    """
    torch.set_num_threads(settings.threads or 1)
    model = load_base(settings)
    _require_room(model, longest)
    blocks_each = -(-(longest + 1) // settings.block_size)
    sizes = PoolSizes(4 * blocks_each, 0, 1, longest + 1, num_host_blocks=blocks_each)
    subject = Subject.of(model, sizes, settings)
    return PrefixBench(subject, describe_machine(model, load_average), seed)


def _require_room(model: LoadedModel, longest: int) -> None:
    if longest + 1 > model.max_model_len:
        raise BenchRefused(
            f"a prompt of {longest} tokens and one more do not fit {model.config.name}, which "
            f"holds at most {model.max_model_len}"
        )
