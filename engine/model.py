"""Base models from transformers, the only library of model definitions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine import gate
from loraplex.engine.adaptable import Adaptable
from loraplex.engine.adapted import AdoptedWeights, adopt, linear_weights
from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import ModelUnsupported
from loraplex.engine.forward import logits_of
from loraplex.engine.fused import fuse
from loraplex.engine.fused_model import Ends
from loraplex.engine.linear_group import are_alike, columns_of_wider
from loraplex.engine.lora_batch import LoraBatch
from loraplex.engine.memory import free_host_bytes, require_model_fits
from loraplex.engine.model_files import (
    check_folder,
    local_folder,
    num_weights,
    own_dtype,
    read_config,
)
from loraplex.engine.parameter_probe import ParameterProbe
from loraplex.engine.tokenizer_files import TokenizerFiles, read_tokenizer
from loraplex.kernels.attention import Scoring
from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.linear import Packer
from loraplex.kernels.linear_choice import Choose, candidates, preferred

_ATTENTION = "loraplex_paged"
_DTYPES = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)
_OWN_ATTENTION = (
    "its attention does not go through transformers' attention interface, so ours cannot take its "
    "place"
)
# Weights that old checkpoints carry and every model computes itself.
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$")
# What transformers and safetensors raise for folders that are not whole, or not what they say.
_LOAD_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A base model that passed the gate, and what the engine must know of it."""

    config: ModelConfig
    path: Path
    """Local folder of config, weights and tokenizer."""
    network: nn.Module
    layers: tuple[gate.LayerShape, ...]
    head_path: str
    """Module path of the layer that makes the logits."""
    shapes: BaseShapes
    """What an adapter can be attached to."""
    lora: LoraBatch
    """Computes rows with their adapters."""
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    kernels: CpuKernels | None
    """What is compiled for the CPU that it is on."""
    packer: Packer
    """Has packed the weights of linear layers."""

    @property
    def weights(self) -> AdoptedWeights:
        """What adapters are compared and combined with when they are loaded."""
        return AdoptedWeights(self.network)

    def logits(
        self, input_ids: Tensor, positions: Tensor, rows: Tensor, step: gate.AttentionStep
    ) -> Tensor:
        """Compute one packed step.

        Args:
            input_ids: ``[rows of the step]`` int64.
            positions: ``[rows of the step]`` int64, each within its own sequence.
            rows: ``[n]`` int64, those whose logits are wanted.
            step: computes the attention.

        Returns:
            ``[n, vocab]`` in the model's dtype.
        """
        return logits_of(self.network, input_ids, positions, rows, step)


def load_model(
    config: ModelConfig, kernels: CpuKernels | None = None, choose: Choose = preferred
) -> LoadedModel:
    """Load a base model from a folder or a name of the hub, and put it through the gate.

    On a CPU ``kernels`` computes what it knows; without it torch does all. ``choose`` decides who
    computes dense layers.

    Raises:
        ModelUnsupported: there is no such model, its files are not whole, or it would not be
            computed right; the message says which.
        MemoryTooSmall: the device has not the memory for its weights.
    """
    AttentionInterface.register(_ATTENTION, _attention)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here
    path = local_folder(config.path)
    try:
        declared = declare(path)
        config = _with_dtype(config, path)
        _require_memory(config, path)
        network = _load_network(path, config)
        return _inspect(path, declared, network, config, kernels, choose)
    except ModelUnsupported as error:
        model_type = read_config(path).get("model_type")
        raise ModelUnsupported(f"{config.path} ({model_type}) cannot be served: {error}") from error


def declare(path: Path) -> gate.Declaration:
    """Check a model's folder as far as it can be told without its weights.

    Raises:
        ModelUnsupported: naming what is in the way.
    """
    check_folder(path, CONFIG_MAPPING.keys())
    declared = _declaration(_load_config(path))
    gate.check_declaration(declared)
    return declared


def _with_dtype(config: ModelConfig, path: Path) -> ModelConfig:
    dtype = own_dtype(path) if config.dtype == "auto" else config.dtype
    if dtype not in _DTYPES:
        raise ModelUnsupported(f"its dtype is {dtype}; set one of {', '.join(_DTYPES)}")
    return replace(config, dtype=dtype)


def _require_memory(config: ModelConfig, path: Path) -> None:
    free_bytes = free_host_bytes()
    if config.device != "cpu":
        free_bytes = torch.cuda.mem_get_info(torch.device(config.device))[0]
    require_model_fits(num_weights(path) * _DTYPES[config.dtype].itemsize, free_bytes)


def _load_config(path: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise ModelUnsupported(f"transformers cannot read its config.json: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnsupported("transformers has no causal language model of this type")
    return config


def _load_network(path: Path, config: ModelConfig) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            attn_implementation=_ATTENTION,
            dtype=_DTYPES[config.dtype],
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except _LOAD_ERRORS as error:
        if isinstance(error, KeyError) and _ATTENTION in str(error):
            raise ModelUnsupported(_OWN_ATTENTION) from error
        raise ModelUnsupported(f"transformers cannot load it: {error}") from error
    network, report = loaded
    _check_weights(report)
    network.eval().requires_grad_(requires_grad=False)
    moved: PreTrainedModel = network.to(config.device)
    return moved


def _check_weights(report: Mapping[str, Any]) -> None:
    """Refuse weights that were made up or left unread: transformers only warns of them."""
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = sorted(str(name) for name in report[kind] if not _COMPUTED.search(str(name)))
        if names:
            shown = ", ".join(names[:3])
            kind_name = kind.replace("_keys", "")
            raise ModelUnsupported(
                f"its files have {len(names)} {kind_name} weights, such as {shown}"
            )


def _inspect(
    path: Path,
    declared: gate.Declaration,
    network: PreTrainedModel,
    config: ModelConfig,
    kernels: CpuKernels | None,
    choose: Choose,
) -> LoadedModel:
    if not network._supports_attention_backend:  # noqa: SLF001  it says so nowhere else
        raise ModelUnsupported(_OWN_ATTENTION)
    embeddings: Any = network.get_input_embeddings()
    ends = Ends(_path_of(network, embeddings), _path_of(network, _head(network)))
    head_path = ends.head
    device = torch.device(config.device)
    vocab_size: int = embeddings.weight.shape[0]
    layers, shapes, groups = _probe(network, declared, (head_path, vocab_size), device)
    dtype = _DTYPES[config.dtype]
    packer = choose(candidates(dtype, device, kernels), linear_weights(network, shapes, head_path))
    lora = adopt(network, shapes, head_path, groups, packer)
    if kernels is not None and device.type == "cpu":
        fuse(network, ends, kernels.elementwise)
    return LoadedModel(
        config=config,
        path=path,
        network=network,
        layers=layers,
        head_path=head_path,
        shapes=shapes,
        lora=lora,
        vocab_size=vocab_size,
        max_model_len=gate.max_model_len(declared, config.max_model_len),
        eos_token_ids=_eos_token_ids(network),
        dtype=dtype,
        device=device,
        kernels=kernels if device.type == "cpu" else None,
        packer=packer,
    )


def _declaration(config: PreTrainedConfig) -> gate.Declaration:
    ropes = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in ropes.values() if isinstance(value, dict)]
    num_layers = getattr(config, "num_hidden_layers", None)
    parts = _models_inside(config)
    if num_layers is None and not parts:
        raise ModelUnsupported("its config states no num_hidden_layers")
    return gate.Declaration(
        num_layers=num_layers or 0,
        layer_types=tuple(getattr(config, "layer_types", None) or ()),
        ropes=tuple(nested if nested and "rope_type" not in ropes else [ropes]),
        max_positions=getattr(config, "max_position_embeddings", None),
        has_cross_attention=bool(
            getattr(config, "is_encoder_decoder", False)
            or getattr(config, "add_cross_attention", False)
        ),
        parts=parts,
        window=getattr(config, "sliding_window", None),
        softcap=getattr(config, "attn_logit_softcapping", None),
    )


def _eos_token_ids(network: PreTrainedModel) -> frozenset[int]:
    eos = getattr(network.generation_config, "eos_token_id", None)
    if eos is None:
        eos = network.config.get_text_config().eos_token_id
    return frozenset([eos] if isinstance(eos, int) else eos or ())


def _models_inside(config: PreTrainedConfig) -> tuple[str, ...]:
    """Names of the models that a configuration is made of; others only group some options."""
    names = sorted(config.sub_configs)
    return tuple(name for name in names if hasattr(getattr(config, name), "num_hidden_layers"))


def _head(network: PreTrainedModel) -> nn.Module | None:
    head: nn.Module | None = network.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers has no types here
    return head


def _path_of(network: nn.Module, module: nn.Module | None) -> str:
    paths: list[str] = [path for path, other in network.named_modules() if other is module]
    if paths:
        return paths[0]
    raise ModelUnsupported(f"{type(network).__name__} has no output layer of its own")


@torch.inference_mode()
def _probe(
    network: PreTrainedModel,
    declared: gate.Declaration,
    head: tuple[str, int],
    device: torch.device,
) -> tuple[tuple[gate.LayerShape, ...], BaseShapes, tuple[tuple[str, ...], ...]]:
    """Run one short sequence through the model and see what it calls.

    ``head`` is the path of the layer that makes the logits, and how many tokens there are.  The
    last of what is returned are paths of linear layers that can be computed together.
    """
    head_path, vocab_size = head
    tokens = torch.arange(7, device=device)
    positions = torch.arange(7, device=device)
    rows = torch.tensor([2, 5], device=device)
    attention = gate.AttentionProbe()
    adaptable = Adaptable.of(network)
    probe = gate.RowProbe(network, adaptable.paths, len(tokens), (head_path, len(rows)))
    parameters = ParameterProbe(network, adaptable.paths, len(tokens))
    try:
        logits = logits_of(network, tokens, positions, rows, attention)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        raise ModelUnsupported(f"its forward pass failed: {error}") from error
    layers = gate.check_layers(declared, attention)
    gate.check_logits(logits, (len(rows), vocab_size))
    served = adaptable.among(probe.finish())
    groups = probe.shared_inputs(served.linears.keys())
    parameters_found = parameters.finish()
    grouped = [network.get_submodule(path) for group in groups for path in group]
    try:
        with columns_of_wider(grouped):
            again = logits_of(network, tokens, positions, rows, gate.AttentionProbe())
        groups = groups if are_alike(again, logits) else ()
    except RuntimeError:  # of a view that needs its tensor in one piece
        groups = ()
    embedding: Any = network.get_input_embeddings()
    shapes = BaseShapes(
        linears=served.linears,
        embeddings=served.embeddings,
        heads=frozenset({head_path} & served.linears.keys()),
        token_embedding=_path_of(network, embedding),
        is_tied=network.get_submodule(head_path).weight is embedding.weight,
        biases=served.biases,
        parameters=parameters_found,
    )
    return layers, shapes, groups


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: gate.AttentionStep | None = None,
    **options: Unpack[gate.AttentionOptions],
) -> tuple[Tensor, None]:
    """Attention function of all models: ``query [1, heads, rows, key_dim]`` and so on."""
    if step is None:
        raise ModelUnsupported("its layers do not hand arguments on to their attention")
    gate.check_attention_call(module, attention_mask, options)
    scaling = options.get("scaling")
    attended = step.attend(
        module.layer_idx,  # type: ignore[arg-type]  # nn.Module tells tensors and modules only
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        Scoring(
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=options.get("sliding_window"),
            softcap=options.get("softcap"),
        ),
    )
    return attended[None], None


def export_tokenizer(path: Path) -> TokenizerFiles:
    """Return the tokenizer of a local model folder; one without tokenizer.json is converted.

    Raises:
        ModelUnsupported: there is none, or none that can be converted.
    """
    try:
        return read_tokenizer(path) or _converted_tokenizer(path)
    except _LOAD_ERRORS as error:
        raise ModelUnsupported(f"{path} has no tokenizer that can be used: {error}") from error


def _converted_tokenizer(path: Path) -> TokenizerFiles:
    tokenizer = AutoTokenizer.from_pretrained(path)
    return TokenizerFiles(
        tokenizer_json=tokenizer.backend_tokenizer.to_str().encode(),
        chat_template=tokenizer.chat_template,
        special_tokens={name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    )
