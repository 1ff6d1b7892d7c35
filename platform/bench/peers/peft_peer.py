"""A batch of mixed adapters as PEFT computes it.

Prompts of a batch have equal length, so nothing is padded; the loop over the KV cache is bare,
without `generate` and what that adds.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import peft
import torch
import transformers
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

_BASE = "__base__"
"""PEFT's name for no adapter."""


class PeftPeer:
    """The base model with all adapters, in one dtype."""

    def __init__(self, model: PeftModel, clock: Callable[[], float]) -> None:
        self.versions = f"{peft.__version__}, transformers {transformers.__version__}"
        self._model, self._clock = model, clock

    @torch.inference_mode()
    def run(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Run the requests of a batch."""
        is_base = all(index is None for index in batch["adapters"])
        # It goes through all modules to say so, which takes longer than a step.
        with self._model.disable_adapter() if is_base else nullcontext():
            return self._decode(batch)

    def _decode(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Prefill, then decode one token of every row per step."""
        names = [_BASE if index is None else str(index) for index in batch["adapters"]]
        # Rows of adapters are told apart in each layer; the base alone is a plain forward pass.
        mixed = {} if set(names) == {_BASE} else {"adapter_names": names}
        cache = None
        rows = torch.tensor(batch["prompts"], device=self._model.device)
        token_ids: list[list[int]] = [[] for _ in names]
        step_s: list[float] = []
        for _ in range(batch["new_tokens"]):
            started = self._clock()
            output = self._model(
                input_ids=rows, past_key_values=cache, use_cache=True, logits_to_keep=1, **mixed
            )
            cache = output.past_key_values
            chosen: Tensor = output.logits[:, -1].argmax(dim=-1)
            for row, token_id in zip(token_ids, chosen.tolist(), strict=True):
                row.append(token_id)
            step_s.append(self._clock() - started)
            rows = chosen[:, None]
        return {
            "token_ids": token_ids,
            "texts": None,
            "first_s": step_s[0],
            "decode_s": sum(step_s[1:]),
            "num_decoded": len(names) * (len(step_s) - 1),
        }


def load(start: dict[str, Any], clock: Callable[[], float]) -> PeftPeer:
    """Load the base model with all adapters."""
    warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated")  # PEFT's call
    torch.set_num_threads(start["threads"])
    base = AutoModelForCausalLM.from_pretrained(
        start["model"], dtype=getattr(torch, start["dtype"])
    )
    first, *others = start["adapters"]
    # By default PEFT computes adapters of a bfloat16 model in float32: another, slower task.
    model = PeftModel.from_pretrained(
        base, first, adapter_name="0", autocast_adapter_dtype=False, low_cpu_mem_usage=True
    )
    for index, folder in enumerate(others, start=1):
        model.load_adapter(
            folder, adapter_name=str(index), autocast_adapter_dtype=False, low_cpu_mem_usage=True
        )
    return PeftPeer(model.to(start["device"]).eval(), clock)
