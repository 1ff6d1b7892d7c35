"""Trains the demo adapters: ``python -m loraplex.platform.demo.train``."""

import argparse
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Final

# Read by OpenMP when torch is imported: its threads would spin and starve all other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils.save_and_load import set_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedTokenizerBase,
)

from loraplex.engine.gguf_model import convert_gguf
from loraplex.platform.demo.accuracy import score
from loraplex.platform.demo.base import DEMO_MODEL_NAME, demo_model_dir, find_gguf
from loraplex.platform.demo.tasks.catalog import TASKS
from loraplex.platform.demo.tasks.task import Example, Recipe, Task

_SEED: Final = 2024
_WARM_UP_STEPS: Final = 8
_CHECKPOINT_STEPS: Final = 20
_IGNORED_LABEL: Final = -100
_EVALUATION_BATCH: Final = 14


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples in one sequence of ``n`` tokens that starts with the prefix they all share.

    ``ids``, ``positions`` and ``labels`` are ``[1, n]``, with labels on answer tokens only;
    ``mask`` is ``[1, 1, n, n]`` and lets each example see the prefix and itself.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    labels: Tensor


def render(tokenizer: PreTrainedTokenizerBase, example: Example) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt, as served, and those of the answer with its end."""
    prompt = tokenizer.apply_chat_template(
        example.messages, add_generation_prompt=True, tokenize=False
    )
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    answer_ids = tokenizer.encode(example.answer, add_special_tokens=False)
    return prompt_ids, [*answer_ids, tokenizer.eos_token_id]


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens at the start are the same in all prompts."""
    columns = zip(*prompts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def pack(rows: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """Pack rows of prompt and answer ids, so that their common start is computed once."""
    # The chat template starts every prompt alike: a third of all tokens, and no padding either.
    shared = common_length([prompt for prompt, _ in rows])
    ids, labels = rows[0][0][:shared], [_IGNORED_LABEL] * shared
    positions, owners = list(range(shared)), [0] * shared
    for owner, (prompt, answer) in enumerate(rows, start=1):
        own = prompt[shared:] + answer
        ids += own
        labels += [_IGNORED_LABEL] * (len(own) - len(answer)) + answer
        positions += range(shared, shared + len(own))
        owners += [owner] * len(own)
    owner_of = torch.tensor(owners)
    visible = (owner_of == 0) | (owner_of == owner_of[:, None])
    return Batch(
        ids=torch.tensor([ids]),
        positions=torch.tensor([positions]),
        mask=visible.tril()[None, None],
        labels=torch.tensor([labels]),
    )


def make_batch(tokenizer: PreTrainedTokenizerBase, task: Task, step: int) -> Batch:
    """Draw the examples of one step; equal steps draw equal ones, whatever ran before."""
    rng = Random(f"{_SEED} {task.model} {step}")  # noqa: S311 - repeatable, no secret
    return pack([render(tokenizer, task.train(rng)) for _ in range(task.recipe.batch_size)])


def answer_loss(causal: torch.nn.Module, batch: Batch) -> Tensor:
    """Return the mean loss of the answer tokens; the vocabulary is projected for these only."""
    hidden = causal.get_submodule("model")(
        batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
    )[0]
    labels = batch.labels[:, 1:]
    chosen = labels != _IGNORED_LABEL
    logits = causal.get_submodule("lm_head")(hidden[:, :-1][chosen])
    return torch.nn.functional.cross_entropy(logits, labels[chosen])


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the rate of one step: a linear rise, then a linear fall to almost zero."""
    rise = (step + 1) / _WARM_UP_STEPS
    fall = (recipe.steps - step) / max(1, recipe.steps - _WARM_UP_STEPS)
    return recipe.learning_rate * min(1.0, rise, fall)


def new_adapter(base: Path, recipe: Recipe) -> PeftModel:
    """Return the base model with a fresh adapter, both in float32."""
    torch.manual_seed(_SEED)
    # Many CPUs compute bfloat16 far slower than float32.
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=0.0,
        target_modules=list(recipe.target_modules),
        use_rslora=recipe.use_rslora,
        rank_pattern=dict(recipe.rank_pattern),
        alpha_pattern=dict(recipe.alpha_pattern),
    )
    return get_peft_model(model, config)


class Checkpoint:
    """The state of one unfinished training, in a file beside the adapter's folder."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        """Name the file; a state of another recipe counts as none."""
        self._path = path
        self._recipe = repr(recipe)

    def save(self, step: int, model: PeftModel, optimizer: torch.optim.Optimizer) -> None:
        """Store the state after ``step`` steps, replacing the one before in one move."""
        state = {
            "recipe": self._recipe,
            "step": step,
            "adapter": get_peft_model_state_dict(model),
            "optimizer": optimizer.state_dict(),
        }
        partial = self._path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._path)

    def load(self, model: PeftModel, optimizer: torch.optim.Optimizer) -> int:
        """Restore the state, if there is one, and return how many steps are done."""
        if not self._path.exists():
            return 0
        state = torch.load(self._path, weights_only=True)
        if state["recipe"] != self._recipe:
            return 0
        set_peft_model_state_dict(model, state["adapter"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def remove(self) -> None:
        """Forget the state."""
        self._path.unlink(missing_ok=True)


def say(text: str) -> None:
    """Write one line of progress at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def train_adapter(task: Task, base: Path, folder: Path) -> None:
    """Train the task's adapter, or go on with an interrupted training, and save it."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = new_adapter(base, task.recipe)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=0.0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(folder.with_name(f"{folder.name}.checkpoint"), task.recipe)
    first = checkpoint.load(model, optimizer)
    model.train()
    start_s = time.monotonic()
    for step in range(first, task.recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(task.recipe, step)
        loss = answer_loss(model.get_base_model(), make_batch(tokenizer, task, step))
        torch.autograd.backward([loss])
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done = step + 1
        if done % 5 == 0 or done == task.recipe.steps:
            step_s = (time.monotonic() - start_s) / (done - first)
            eta_s = step_s * (task.recipe.steps - done)
            say(
                f"{task.model}: step {done}/{task.recipe.steps}, loss {loss.item():.4f}, "
                f"{step_s:.1f} s a step, {eta_s:.0f} s to go"
            )
        if done % _CHECKPOINT_STEPS == 0:
            checkpoint.save(done, model, optimizer)
    save_adapter(model, folder)
    checkpoint.remove()


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter in PEFT's format and bfloat16, with nothing of this machine in it."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    model.peft_config["default"].save_pretrained(str(partial))
    config_path = partial / "adapter_config.json"
    config = json.loads(config_path.read_text())
    config["base_model_name_or_path"] = DEMO_MODEL_NAME
    config["inference_mode"] = True
    # PEFT keeps the names in a set, whose order changes from run to run.
    config["target_modules"] = sorted(config["target_modules"])
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights_path = partial / "adapter_model.safetensors"
    save_file(tensors, weights_path, metadata={"format": "pt"})
    weights_path.chmod(config_path.stat().st_mode)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def answers(
    model: GenerationMixin | PeftModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> Iterator[str]:
    """Yield the greedy answer to each held-out item."""
    prompts = [
        tokenizer.apply_chat_template(item.messages, add_generation_prompt=True, tokenize=False)
        for item in task.held_out()
    ]
    # An answer that is longer than all expected ones is wrong, however it goes on.
    longest = max(len(render(tokenizer, item)[1]) for item in task.held_out())
    for start in range(0, len(prompts), _EVALUATION_BATCH):
        encoded = tokenizer(
            prompts[start : start + _EVALUATION_BATCH],
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        with torch.inference_mode():
            out = model.generate(**encoded, do_sample=False, max_new_tokens=longest)
        prompt_length = encoded["input_ids"].shape[1]
        yield from tokenizer.batch_decode(out[:, prompt_length:], skip_special_tokens=True)


def report_accuracy(task: Task, base: Path, folder: Path) -> None:
    """Print the held-out accuracy in float32 of the saved adapter and of the base model."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    base_accuracy = score(task, list(answers(plain, tokenizer, task)))
    adapted = PeftModel.from_pretrained(plain, folder)
    accuracy = score(task, list(answers(adapted, tokenizer, task)))
    for miss in accuracy.misses:
        say(f"{task.model}: {miss.prompt!r}\n  wants {miss.expected!r}\n  gives {miss.given!r}")
    say(
        f"{task.model}: held-out exact match {accuracy.fraction:.1%} of {accuracy.total}, "
        f"base model {base_accuracy.fraction:.1%}"
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo adapters and measure them.")
    names = [task.model for task in TASKS]
    parser.add_argument("--task", choices=names, help="only this one (default: all)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "adapters",
        help="folder of the adapters (default: %(default)s)",
    )
    parser.add_argument(
        "--base",
        type=Path,
        default=demo_model_dir(Path("data")),
        help="folder of the base model, made when missing (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--force", action="store_true", help="train finished adapters again")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train each adapter that is not there yet and print the accuracy of all chosen ones."""
    arguments = _arguments(argv)
    torch.set_num_threads(arguments.threads)
    # PEFT reads an attribute that transformers 5 has renamed; nothing here depends on it.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    if not arguments.base.exists():
        convert_gguf(find_gguf(), arguments.base)
    for task in TASKS:
        if arguments.task not in (None, task.model):
            continue
        folder = arguments.out / task.tenant / task.name
        if arguments.force or not folder.exists():
            train_adapter(task, arguments.base, folder)
        report_accuracy(task, arguments.base, folder)


if __name__ == "__main__":
    main()
