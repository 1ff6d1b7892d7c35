"""Engines under test: as the worker composes them, over one set of base weights."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from torch import Tensor, nn

from loraplex.engine.lora_linear import LoraLinear
from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel, export_tokenizer
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.lora_cpu import CpuLora
from loraplex.platform.bench.adapters import BenchAdapter
from loraplex.platform.settings import Settings
from loraplex.platform.worker import EngineParts, compose_engine


@dataclass(frozen=True, slots=True)
class Subject:
    """One way to compute the base model, from which any number of engines is made."""

    model: LoadedModel
    runner: ModelRunner
    sizes: PoolSizes
    settings: Settings
    tokenizer_json: bytes

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        sizes: PoolSizes,
        settings: Settings,
        cpu_lora: CpuLora | None,
    ) -> "Subject":
        """Take over the model's linear layers; `cpu_lora` is the compiled kernel, if any."""
        endless = replace(model, eos_token_ids=frozenset())  # every request runs to its length
        runner = ModelRunner(
            endless, sizes.num_blocks, settings.block_size, cpu_lora, sizes.num_host_blocks
        )
        tokenizer = export_tokenizer(model.path).tokenizer_json
        return cls(endless, runner, sizes, settings, tokenizer)

    def new_engine(self) -> EngineParts:
        """An engine in whose memory no adapter is; only one may be in use at a time."""
        return compose_engine(
            self.settings, self.model, self.runner, self.sizes, self.tokenizer_json
        )


def with_own_modules(model: LoadedModel) -> LoadedModel:
    """The same model with modules of its own over the same weights, which are not copied."""
    network = model.network
    layers = [module for module in network.modules() if isinstance(module, LoraLinear)]
    held: list[object] = [*network.parameters(), *network.buffers(), model.lora]
    held += [layer.packed for layer in layers]
    return replace(model, network=deepcopy(network, {id(each): each for each in held}))


class _BareLinear(nn.Module):
    """A linear layer as it would be if no adapter could be served."""

    def __init__(self, layer: LoraLinear) -> None:
        super().__init__()
        self._base_output = layer.base_output

    def forward(self, x: Tensor) -> Tensor:
        return self._base_output(x)


def without_lora(model: LoadedModel) -> LoadedModel:
    """The same model, whose linear layers know of no adapters."""
    bare = with_own_modules(model)
    for path in bare.shapes.linears:
        parent, _, name = path.rpartition(".")
        layer = bare.network.get_submodule(path)
        if isinstance(layer, LoraLinear):
            setattr(bare.network.get_submodule(parent), name, _BareLinear(layer))
    return bare


def pool_sizes(
    adapters: Sequence[BenchAdapter],
    num_requests: int,
    request_tokens: int,
    block_size: int,
) -> PoolSizes:
    """Room for `num_requests` of `request_tokens` each, and for all adapters at once."""
    num_blocks = -(-request_tokens // block_size) * num_requests
    return PoolSizes(
        num_blocks=num_blocks,
        kv_bytes=0,
        adapter_bytes=sum(adapter.num_bytes for adapter in adapters),
        max_model_len=request_tokens,
    )
