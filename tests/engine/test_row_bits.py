"""With compiled kernels what a request gets has the same bits whoever is served beside it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine.alone import load_adapters
from tests.engine.architectures import ARCHITECTURES
from tests.engine.packed_greedy import GREEDY, plan_of
from torch import Tensor

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.plan import Chunk
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.cpu_kernels import CpuKernels

BLOCK_SIZE = 4
PROMPT = tuple(range(5, 26))
KEY, OTHER = (AdapterKey("tenant", name) for name in ("own", "other"))
ATTACHED = {"target_modules": ["q_proj", "v_proj", "down_proj"]}
GPT2 = {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True}


class World:
    def __init__(self, folder: Path, name: str, dtype: str, kernels: CpuKernels) -> None:
        path = tiny_models.save_model(folder / "model", ARCHITECTURES[name].config)
        attached = GPT2 if name == "GPT-2" else ATTACHED
        folders = {
            key.digest: tiny_models.save_adapter(
                folder / key.digest, path, seed, **attached, **options
            )
            for seed, (key, options) in enumerate(
                {KEY: {"r": 4, "use_dora": True}, OTHER: {"r": 7}}.items()
            )
        }
        model = load_model(ModelConfig(path, "tiny", "cpu", dtype), kernels)
        self.runner = ModelRunner(model, 64, BLOCK_SIZE)
        loaded = load_adapters(model, folders, AdapterStore(folder / "store"))
        self.adapters = {key: self.runner.locate(weights) for key, weights in loaded.items()}

    def logits(
        self, adapter: AdapterKey | None, cuts: Sequence[int] = (), *, is_beside: bool = False
    ) -> Tensor:
        """After the prompt, computed in chunks that end at `cuts`, perhaps beside others."""
        blocks = tuple(range(10))
        for start, end in pairwise((0, *cuts, len(PROMPT))):
            sample = GREEDY if end == len(PROMPT) else None
            own = Chunk("own", adapter, PROMPT[start:end], start, blocks, sample)
            plan = plan_of([own, *(_others() if is_beside else ())])
            batch = self.runner.build(plan, self.adapters)
            logits = self.runner.logits(batch)
        keys = [batch.sampled_keys[place] for place in batch.places]
        return logits[keys.index("own")].clone()


def _others() -> list[Chunk]:
    """Prompts and decodes of the base model and of both adapters."""
    prompts = [(None, 7), (None, 1), (KEY, 30), (KEY, 1), (OTHER, 3), (OTHER, 18)]
    return [
        Chunk(f"{n}", key, tuple(range(40, 40 + size)), 0, tuple(range(8 * n, 8 * n + 8)), GREEDY)
        for n, (key, size) in enumerate(prompts, 2)
    ]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma 3 (text)", "GPT-2"])
def test_neither_others_nor_chunks_nor_threads_change_a_bit(
    name: str, dtype: str, tmp_path: Path, compiled_kernels: CpuKernels
) -> None:
    world = World(tmp_path, name, dtype, compiled_kernels)
    for adapter in (None, KEY, OTHER):
        with threads(1):
            expected = world.logits(adapter)
        for num_threads, cuts, is_beside in product((1, 2), ((), (1, 9, 20), (16,)), (False, True)):
            with threads(num_threads):
                found = world.logits(adapter, cuts, is_beside=is_beside)
            assert torch.equal(found, expected), (adapter, num_threads, cuts, is_beside)
