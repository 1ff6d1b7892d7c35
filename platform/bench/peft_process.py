"""A batch of mixed adapters as PEFT computes it, in a process of its own.

Reads one `Start` from standard input, answers `Started` when all adapters are loaded, then answers
each `Batch` with `Done`. Prompts of a batch have equal length, so nothing is padded; the loop over
the KV cache is bare, without `generate` and what that adds.
"""

import os
import sys
from time import perf_counter

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import msgspec
import peft
import torch
import transformers
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from loraplex.platform.bench.peft_messages import Batch, Done, Start, Started


def load(start: Start) -> PeftModel:
    """Load the base model with all adapters, in one dtype."""
    torch.set_num_threads(start.threads)
    base = AutoModelForCausalLM.from_pretrained(start.model, dtype=getattr(torch, start.dtype))
    first, *others = start.adapters
    # By default PEFT computes adapters of a bfloat16 model in float32: another, slower task.
    model = PeftModel.from_pretrained(
        base, first, adapter_name="0", autocast_adapter_dtype=False, low_cpu_mem_usage=True
    )
    for index, folder in enumerate(others, start=1):
        model.load_adapter(
            folder, adapter_name=str(index), autocast_adapter_dtype=False, low_cpu_mem_usage=True
        )
    return model.to(start.device).eval()


@torch.inference_mode()
def run(model: PeftModel, batch: Batch) -> Done:
    """Prefill, then decode one token of every row per step."""
    names = [str(index) for index in batch.adapters]
    cache = None
    rows = torch.tensor(batch.prompts, device=model.device)
    tokens: list[list[int]] = [[] for _ in names]
    step_s: list[float] = []
    for _ in range(batch.new_tokens):
        started = perf_counter()
        output = model(
            input_ids=rows,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            adapter_names=names,
        )
        cache = output.past_key_values
        chosen: Tensor = output.logits[:, -1].argmax(dim=-1)
        for row, token_id in zip(tokens, chosen.tolist(), strict=True):
            row.append(token_id)
        step_s.append(perf_counter() - started)
        rows = chosen[:, None]
    return Done(tokens, step_s[1:])


def main() -> None:
    """Answer line by line until standard input ends."""
    lines = iter(sys.stdin.buffer)
    model = load(msgspec.json.decode(next(lines), type=Start))
    _answer(Started(peft.__version__, transformers.__version__))
    for line in lines:
        _answer(run(model, msgspec.json.decode(line, type=Batch)))


def _answer(message: Started | Done) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
