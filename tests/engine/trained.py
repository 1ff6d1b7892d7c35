"""Adapters as PEFT saves them, with all that was trained random and far from where it started."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

STRENGTH = 0.3


def save_trained(
    folder: Path, model_folder: Path, seed: int, *, num_tokens: int | None = None, **config: Any
) -> Path:
    """Save an adapter of a model whose vocabulary was resized to ``num_tokens``; return its folder.

    What is trained lies where each overlooked part shows in the greedy output.
    """
    torch.manual_seed(seed)
    with _without_advice():
        model = get_peft_model(
            _base(model_folder, num_tokens), LoraConfig(task_type="CAUSAL_LM", **config)
        )
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                _train(name, parameter)
        model.save_pretrained(folder)
    return folder


def load_trained(
    folder: Path,
    model_folder: Path,
    *,
    num_tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The model as PEFT computes it with an adapter."""
    with _without_advice():
        model = PeftModel.from_pretrained(_base(model_folder, num_tokens, dtype), folder)
    return model.eval()


def _train(name: str, parameter: nn.Parameter) -> None:
    noise = torch.randn_like(parameter)
    # In place, since tied modules share their memory.
    if "lora_magnitude_vector" in name:
        parameter.data *= 1 + STRENGTH * noise
    elif "lora_A" in name or "lora_B" in name or "lora_embedding" in name:
        parameter.data.copy_(STRENGTH * noise)
    else:
        parameter.data += STRENGTH * noise


def _base(
    folder: Path, num_tokens: int | None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    if num_tokens is not None:
        model.resize_token_embeddings(num_tokens, mean_resizing=False)
    return model


@contextmanager
def _without_advice() -> Iterator[None]:
    """PEFT warns of tied heads and of copies of embeddings, which is what these tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
