"""Tiny random base models and adapters, saved in the formats that real ones have."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.utils import logging as transformers_logging

TEXT = """
Each tenant brings adapters of its own, small matrices beside one large model that all of them
share. A request names an adapter; the engine finds it, puts the request into the next batch and
returns tokens as they come. Nobody waits for a stranger's download, nobody reads a stranger's
cache, and what is counted is what was computed: 1, 2, 3, 7 or 133 rows at a time.
"""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_COMMON = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # far from the margins below which float32 may choose another token
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def sizes(**changes: Any) -> dict[str, Any]:
    """Three small layers, under the names that most configurations have for them."""
    return {**_COMMON, **changes}


def llama_config(**changes: Any) -> LlamaConfig:
    """Grouped queries, head apart from the embedding."""
    return LlamaConfig(**sizes(**{"tie_word_embeddings": False, **changes}))


def qwen3_config(**changes: Any) -> Qwen3Config:
    """Normalised queries and keys, heads wider than their share, head tied to the embedding."""
    return Qwen3Config(**{**_COMMON, "head_dim": 16, "tie_word_embeddings": True, **changes})


def save_model(folder: Path, config: PreTrainedConfig, seed: int = 0) -> Path:
    """Save a random model of this architecture with its tokenizer; return the folder."""
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # these start as ones or zeros
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 320 tokens, trained on `TEXT`, with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_COMMON["vocab_size"],
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_adapter(
    folder: Path, model_folder: Path, seed: int = 0, *, strength: float = 0.3, **config: Any
) -> Path:
    """Save a PEFT adapter with random, non-zero A and B; return the folder.

    At the default strength an update is about as large as what the layer computes without it, so
    that another rank, alpha, scaling rule or pattern shows in the greedy output.
    """
    transformers_logging.disable_progress_bar()
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with _without_advice():
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config))
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.data = strength * torch.randn_like(parameter)
        model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def load_reference(
    model_folder: Path, adapter_folder: Path | None = None, dtype: torch.dtype = torch.float32
) -> torch.nn.Module:
    """Load the model as transformers computes it, or with an adapter as PEFT does."""
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=dtype, attn_implementation="eager"
    )
    if adapter_folder is not None:
        with _without_advice():
            model = PeftModel.from_pretrained(model, adapter_folder)
    return model.eval()


@contextmanager
def _without_advice() -> Iterator[None]:
    """PEFT warns of tied heads as targets, which are fine when nothing is merged, and of patterns
    that match parameters only, which it honours all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")
        warnings.filterwarnings("ignore", message=".*did not match any targeted module")
        yield
