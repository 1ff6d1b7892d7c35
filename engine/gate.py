"""Structural checks of a base model: what they let through is computed right, or refused here.

Many architectures of transformers run under another attention function and give wrong results
without an error: they are not causal, keep part of their attention in the mask, or have layers
without attention.  None of the checks knows a model by name.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor, nn

from loraplex.engine.errors import ModelUnsupported
from loraplex.kernels.attention import Scoring, Window

# What some attention functions are told and ours does not do, in words.
_UNSERVED: Mapping[str, str] = MappingProxyType(
    {
        "s_aux": "attention sinks",
        "sinks": "attention sinks",
        "position_bias": "position biases",
        "indices": "attention to selected tokens",
        "block_indices": "attention to selected blocks",
    }
)
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class AttentionOptions(TypedDict, total=False):
    """Arguments of an attention function that we honour, or that say nothing about its result."""

    scaling: float | None
    sliding_window: int | None
    softcap: float | None
    is_causal: bool | None
    position_ids: Tensor
    use_cache: bool
    dropout: float
    output_attentions: bool | None
    output_hidden_states: bool | None
    output_router_logits: bool | None


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of one attention layer."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: Window
    softcap: float | None = None
    group: int = 1
    """Heads of queries for each of keys and values."""


class AttentionStep(Protocol):
    """What the attention function of a model delegates to; it travels through the forward pass."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Attend all rows of the step in one layer.

        Shapes: ``q [rows, heads, key_dim]``, ``k [rows, kv_heads, key_dim]``,
        ``v [rows, kv_heads, value_dim]``; returns ``[rows, heads, value_dim]``.
        """
        ...


class AttentionProbe:
    """Attention of one short sequence that records which layers called it, and with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerShape]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Record the call; plain causal attention, shapes as in ``AttentionStep``."""
        shape = LayerShape(
            kv_heads=k.shape[1],
            key_dim=k.shape[2],
            value_dim=v.shape[2],
            window=scoring.window,
            softcap=scoring.softcap,
            group=q.shape[1] // k.shape[1],
        )
        self.calls.append((layer, shape))
        attended = nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            scale=scoring.scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return attended[0].transpose(0, 1).contiguous()


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the configuration of a model says of its attention."""

    num_layers: int
    layer_types: tuple[str, ...]
    """One for each layer, or none where all are alike."""
    ropes: tuple[Mapping[str, Any], ...]
    """Parameters of the rotary embedding, one for each layer type where they differ."""
    max_positions: int | None
    has_cross_attention: bool
    parts: tuple[str, ...] = ()
    """Configurations inside this one: of a text model and of what is put before it."""
    window: Window = None
    """Of the layers that slide."""
    softcap: float | None = None
    """Of attention scores."""


def check_declaration(declared: Declaration) -> None:
    """Refuse what the configuration already tells.

    Raises:
        ModelUnsupported: naming the field.
    """
    if declared.has_cross_attention:
        raise ModelUnsupported("it has cross-attention (is_encoder_decoder or add_cross_attention)")
    if declared.parts:
        raise ModelUnsupported(
            f"it is made of several models ({', '.join(declared.parts)}); only a text model of its "
            "own is served: save that one"
        )
    unknown = sorted(set(declared.layer_types) - _LAYER_TYPES)
    if unknown:
        raise ModelUnsupported(
            f"it has layers of type {', '.join(unknown)} (layer_types); served are "
            f"{' and '.join(sorted(_LAYER_TYPES))}"
        )
    for rope in declared.ropes:
        if "dynamic" in rope.get("rope_type", "default"):
            raise ModelUnsupported(
                f"rope_type is {rope['rope_type']!r}: its frequencies depend on the longest "
                "request of the batch, so one tenant's request would change another's result"
            )


def max_model_len(declared: Declaration, requested: int | None) -> int:
    """Longest prompt plus output in tokens: ``requested``, or all that the model allows.

    Raises:
        ModelUnsupported: the model allows less, or states no limit and none was requested.
    """
    # Beyond the original length longrope takes other frequencies, for the whole batch.
    limits = [
        rope.get("original_max_position_embeddings") or declared.max_positions or 0
        for rope in declared.ropes
        if rope.get("rope_type") == "longrope"
    ]
    if declared.max_positions is not None:
        limits.append(declared.max_positions)
    limit = min(limits, default=requested)
    if limit is None:
        raise ModelUnsupported("its config states no max_position_embeddings; set max_model_len")
    if requested is not None and requested > limit:
        raise ModelUnsupported(f"max_model_len is {requested} and it serves at most {limit} tokens")
    return requested or limit


def check_attention_call(
    module: nn.Module, attention_mask: Tensor | None, options: AttentionOptions
) -> None:
    """Refuse a call of the attention function that asks for more than causal attention.

    Raises:
        ModelUnsupported: naming what is asked for.
    """
    name = type(module).__name__
    if getattr(module, "is_causal", None) is not True or options.get("is_causal") is False:
        raise ModelUnsupported(f"{name} is not causal")
    if attention_mask is not None:
        raise ModelUnsupported(f"{name} makes an attention mask of its own")
    known = AttentionOptions.__annotations__
    asked = [key for key, value in options.items() if value is not None and key not in known]
    if asked:
        words = [f"{_UNSERVED[key]} ({key})" if key in _UNSERVED else key for key in asked]
        raise ModelUnsupported(f"{name} needs attention with {', '.join(words)}")


def check_layers(declared: Declaration, probe: AttentionProbe) -> tuple[LayerShape, ...]:
    """Return the layers' shapes, once the probe saw each layer exactly once, in order.

    Raises:
        ModelUnsupported: attention ran elsewhere, or not as the configuration says.
    """
    called = [layer for layer, _ in probe.calls]
    if called != list(range(declared.num_layers)):
        raise ModelUnsupported(
            f"one forward pass of {declared.num_layers} layers ran attention {len(called)} times, "
            f"in layers {called[:8]}{'…' if len(called) > 8 else ''}, not once in each"
        )
    shapes = tuple(shape for _, shape in probe.calls)
    for layer, layer_type in enumerate(declared.layer_types):
        if (layer_type == "sliding_attention") != (shapes[layer].window is not None):
            raise ModelUnsupported(f"layer {layer} is {layer_type} but has {shapes[layer]}")
    if not declared.layer_types:
        _check_all_came("window", declared.window, {shape.window for shape in shapes})
    _check_all_came("soft cap", declared.softcap, {shape.softcap for shape in shapes})
    return shapes


def _check_all_came(what: str, declared: float | None, passed: set[float | None]) -> None:
    """Refuse an option that the configuration has and the attention function never got."""
    if declared and declared not in passed:
        raise ModelUnsupported(
            f"its config has an attention {what} of {declared}, but its layers pass {passed}"
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """Of a linear layer."""

    path: str
    layer: nn.Linear
    input: Tensor
    """Held, so that no other tensor takes its identity."""
    numbers: Tensor
    """A copy, since others may write into it between two calls."""

    def shares_input(self, other: "_Call") -> bool:
        return (
            self.input is other.input
            and self.layer.weight.dtype is other.layer.weight.dtype
            and torch.equal(self.numbers, other.numbers)
        )


class RowProbe:
    """Finds the modules that see each row of a forward pass once, in order.

    Others (experts, which see the rows that a router sends them) cannot take part in a batch of
    adapters.
    """

    def __init__(
        self, network: nn.Module, paths: Iterable[str], body_rows: int, head: tuple[str, int]
    ) -> None:
        """``head`` is the path of the module that sees other rows than the rest, and how many."""
        self._calls: dict[str, list[int]] = {}
        self._inputs: list[_Call] = []
        self._body_rows = body_rows
        self._head_path, self._head_rows = head
        self._handles = [
            network.get_submodule(path).register_forward_pre_hook(self._recorder(path))
            for path in paths
        ]

    def finish(self) -> frozenset[str]:
        """Stop recording; return the paths."""
        for handle in self._handles:
            handle.remove()
        return frozenset(
            path for path, rows in self._calls.items() if rows == [self._expected(path)]
        )

    def shared_inputs(self, linears: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """Those of ``linears`` that were called one after the other with the identical tensor, and
        found the same numbers in it; after `finish`."""
        groups: list[list[_Call]] = []
        for call in self._inputs:
            if call.path in linears:
                last = groups[-1][-1] if groups else None
                if last is None or not last.shares_input(call):
                    groups.append([])
                groups[-1].append(call)
        self._inputs.clear()
        return tuple(tuple(call.path for call in group) for group in groups if len(group) > 1)

    def _expected(self, path: str) -> int:
        return self._head_rows if path == self._head_path else self._body_rows

    def _recorder(self, path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            shape = inputs[0].shape if inputs else torch.Size()
            shape = shape if isinstance(module, nn.Embedding) else shape[:-1]
            self._calls.setdefault(path, []).append(shape.numel() if shape else 0)
            if isinstance(module, nn.Linear) and inputs:
                self._inputs.append(_Call(path, module, inputs[0], inputs[0].clone()))

        return record


def check_logits(logits: Tensor, shape: tuple[int, int]) -> None:
    """Refuse a head that computes other rows than those asked for, another number of tokens than
    the model has, or numbers that are none.

    Raises:
        ModelUnsupported: naming the shape.
    """
    if logits.shape != shape:
        raise ModelUnsupported(f"asked for logits {shape} it returns {tuple(logits.shape)}")
    if not torch.isfinite(logits).all():
        raise ModelUnsupported("its logits are not finite; another dtype may help")
