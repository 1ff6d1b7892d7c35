"""An adapter as transformers and PEFT compute it, in a process of its own.

    python -m loraplex.engine.self_test.peft_process MODEL_FOLDER DTYPE THREADS CPU_S

Reads a `Check` from each line of standard input, answers with a line, and ends with its input. The
base model is loaded for each check, since PEFT leaves traces of an adapter in the one that it is
attached to; between checks none is held. The process ends if a check takes CPU_S seconds of the
processor: while PEFT matches a regular expression no thread runs that could end it otherwise.
"""

import gc
import os
import sys

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["HF_HUB_OFFLINE"] = "1"  # an adapter's config may name what is not here

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import BinaryIO

import msgspec
import peft
import torch
import transformers
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from loraplex.engine.self_test.peft_messages import Check, CheckAnswer, Checked, CheckFailed
from loraplex.engine.self_test.positions import known_to_base, positions_of
from loraplex.engine.self_test.processor_time import bound_processor_time

VERSIONS = MappingProxyType(
    {
        "peft": peft.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
)


@torch.inference_mode()
def check(model_folder: str, dtype: str, asked: Check) -> Checked:
    """Compute the drawn tokens' logits without the adapter and with it."""
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model_folder,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",  # others leave out soft caps without a word
        use_safetensors=True,
        trust_remote_code=False,
    )
    vocab_size = base.get_input_embeddings().get_parameter("weight").shape[0]
    base_logits = [
        _logits(base, known_to_base(_ids(prompt, tokens), vocab_size), len(tokens))
        for prompt, tokens in asked.drawn
    ]
    if asked.vocab_size is not None:
        base.resize_token_embeddings(asked.vocab_size, mean_resizing=False)
    adapted: nn.Module = PeftModel.from_pretrained(base, asked.folder)
    adapted.eval()
    positions = tuple(
        positions_of(_logits(adapted, _ids(prompt, tokens), len(tokens)), of_base, tokens)
        for (prompt, tokens), of_base in zip(asked.drawn, base_logits, strict=True)
    )
    return Checked(positions, dict(VERSIONS))


def _ids(prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """``[1, length]``: all that was known when the last token was drawn."""
    return torch.tensor([[*prompt, *tokens[:-1]]])


def _logits(model: nn.Module, ids: Tensor, num_tokens: int) -> Tensor:
    """Logits ``[num_tokens, vocab]`` of the last positions, float32."""
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    logits: Tensor = output.logits[0, -num_tokens:].float()
    return logits


def main() -> None:
    """Answer line by line until standard input ends, which ends the process at once."""
    model_folder, dtype, threads, cpu_s = sys.argv[1:]
    answers = _private_output()
    _step_back(int(threads))
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        asked = msgspec.json.decode(lines.get(), type=Check)
        bound_processor_time(int(cpu_s))
        answer: CheckAnswer
        try:
            answer = check(model_folder, dtype, asked)
        except Exception as error:  # noqa: BLE001  one check must not end those that come after it
            answer = CheckFailed(f"{type(error).__name__}: {error}"[:2000])
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()
        gc.collect()  # PEFT's models hold themselves


def _private_output() -> BinaryIO:
    """Standard output, which from now on leads to standard error for all who print."""
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return private


def _step_back(num_threads: int) -> None:
    """Let everything else on the machine go first, and die first where memory runs out."""
    os.nice(10)
    torch.set_num_threads(num_threads)
    Path("/proc/self/oom_score_adj").write_text("1000")
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers has no types here
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here
    warnings.simplefilter("ignore")


def _read(lines: "SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
