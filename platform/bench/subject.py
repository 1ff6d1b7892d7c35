"""Engines under test: as the worker composes them, over one set of base weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loraplex.engine.assist_port import Assist
from loraplex.engine.cost import CostModel
from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel, export_tokenizer
from loraplex.engine.runner import ModelRunner
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
        assist: Assist | None = None,
    ) -> "Subject":
        """Take over the model's linear layers; `assist` stays the caller's to close."""
        endless = replace(model, eos_token_ids=frozenset())  # every request runs to its length
        runner = ModelRunner(
            endless, sizes.num_blocks, settings.block_size, sizes.num_host_blocks, assist
        )
        tokenizer = export_tokenizer(model.path).tokenizer_json
        return cls(endless, runner, sizes, settings, tokenizer)

    def new_engine(self, costs: CostModel | None = None) -> EngineParts:
        """An engine in whose memory no adapter is; only one may be in use at a time. Without
        ``costs`` it knows nothing of step times yet."""
        return compose_engine(
            self.settings, self.model, self.runner, self.sizes, self.tokenizer_json, costs
        )


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
