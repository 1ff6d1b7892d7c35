"""Replaces forward passes of a model by shorter ones that are proved equal when it is loaded.

Between its matrix products and its attention a decoder layer does little arithmetic in many small
steps, each a call of Python and of torch.  Here a few calls of compiled ops do the same.
Modules stay where they are, with their parameters, names and children; only what they do when they
are called changes, and linear layers are called as before.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from loraplex.engine import gate, proof
from loraplex.engine.forward import logits_of
from loraplex.engine.fused_attention import FusedAttention, find_attention
from loraplex.engine.fused_layer import FusedLayer, find_layer, is_candidate
from loraplex.engine.fused_model import Ends, FusedModel, Tables, find_model
from loraplex.engine.fused_parts import FusedJointMlp, FusedMlp, FusedNorm, find_mlp, find_norms
from loraplex.kernels.elementwise import CpuElementwise

_log = logging.getLogger(__name__)

_TOLERANCES = MappingProxyType({torch.float32: 1e-4, torch.bfloat16: 5e-2})
"""Of logits with other forward passes of layers, each of which is proved by itself, over the
largest logit."""
_HEAD_GAIN = 64.0
"""With which a bound of logits shows."""
_TABLES = "rotary_emb"

Forwards = dict[nn.Module, Callable[..., Any]]
"""What takes the place of the forward passes of some modules."""


@torch.inference_mode()
def fuse(network: nn.Module, ends: Ends, ops: CpuElementwise) -> None:
    """Replace the forward passes of decoder layers, of their parts and of the whole model where
    that is proved right.

    Args:
        network: on a CPU; its linear layers are adopted.
        ends: of it.
        ops: compute what is replaced.
    """
    layers = {path: each for path, each in network.named_modules() if is_candidate(each)}
    with _recorded(network, layers.values()) as seen:
        expected = _probe(network, ends)
    rows_dtype = network.get_submodule(ends.embedding).get_parameter("weight").dtype
    if not layers or not (ops.supports(expected.dtype) and ops.supports(rows_dtype)):
        return
    forwards: Forwards = {}
    for layer in layers.values():
        forwards |= _found_in(layer, seen, ops)
    forwards |= find_norms(_body_of(network, layers).children(), ops)
    _replace(forwards)
    if not _is_close(proof.result_of(_probe, network, ends), expected):
        _restore(forwards)
        _log.warning("the model's own code computes all of it: compiled ops change its logits")
        return
    whole = _found_whole(network, ends, layers, seen, forwards)
    if whole:
        expected = _probe(network, ends, _HEAD_GAIN)
        _replace(whole)
        if not _is_equal(proof.result_of(_probe, network, ends, _HEAD_GAIN), expected):
            _restore(whole)
            whole = {}
    _report(layers.values(), forwards, is_whole=bool(whole))


_Fused = FusedModel | FusedLayer | FusedAttention | FusedMlp | FusedJointMlp | FusedNorm


def fused_forwards(network: nn.Module) -> Forwards:
    """Return the forward passes that `fuse` has replaced, by module."""
    forwards = {module: vars(module).get("forward") for module in network.modules()}
    return {module: each for module, each in forwards.items() if isinstance(each, _Fused)}


@contextmanager
def own_code(network: nn.Module) -> Iterator[None]:
    """Have modules compute by their own code what `fuse` has replaced."""
    forwards = fused_forwards(network)
    _restore(forwards)
    try:
        yield
    finally:
        _replace(forwards)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What layers were called with, in one forward pass of the model."""

    options: dict[nn.Module, Mapping[str, Any]] = field(default_factory=dict)
    """Of layers and their attention, but the hidden states; not of those that are called otherwise,
    or twice."""
    tables: list[tuple[Tables, object]] = field(default_factory=list)
    """Rotary tables, and how they were made."""

    def tables_of(self, layer: nn.Module) -> Tables | None:
        """How those that a layer got were made."""
        got = self.options.get(layer, {}).get("position_embeddings")
        return next((made for made, tables in self.tables if tables is got), None)


@contextmanager
def _recorded(network: nn.Module, layers: Iterable[nn.Module]) -> Iterator[_Seen]:
    calls: dict[nn.Module, list[Mapping[str, Any]]] = {}
    seen = _Seen()

    def record(module: nn.Module, args: tuple[object, ...], options: Mapping[str, Any]) -> None:
        others = {name: each for name, each in options.items() if name != "hidden_states"}
        is_known = len(args) + len(options) - len(others) == 1
        calls.setdefault(module, []).append(others if is_known else {})

    def record_tables(
        module: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any], made: object
    ) -> None:
        others = args[1 if "position_ids" in options else 2 :]
        if len(options) == ("position_ids" in options):
            seen.tables.append((Tables(module, others), made))

    watched = [each for layer in layers for each in (layer, _attention_of(layer))]
    handles = [each.register_forward_pre_hook(record, with_kwargs=True) for each in watched]
    handles += [
        module.register_forward_hook(record_tables, with_kwargs=True)
        for path, module in network.named_modules()
        if path.rpartition(".")[2] == _TABLES
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
    seen.options.update({module: made[0] for module, made in calls.items() if len(made) == 1})


def _attention_of(layer: nn.Module) -> nn.Module:
    return layer.get_submodule("self_attn")


def _body_of(network: nn.Module, layers: Iterable[str]) -> nn.Module:
    """What has the list of layers at these paths, and the norm behind them."""
    container, _, _ = next(iter(layers)).rpartition(".")
    return network.get_submodule(container.rpartition(".")[0])


def _found_in(layer: nn.Module, seen: _Seen, ops: CpuElementwise) -> Forwards:
    mlp, attention = layer.get_submodule("mlp"), _attention_of(layer)
    found = {
        mlp: find_mlp(mlp, ops),
        attention: find_attention(attention, seen.options.get(attention, {}), ops),
        layer: find_layer(layer, seen.options.get(layer, {}), ops),
    }
    return {module: forward for module, forward in found.items() if forward is not None}


def _found_whole(
    network: nn.Module,
    ends: Ends,
    layers: Mapping[str, nn.Module],
    seen: _Seen,
    found: Forwards,
) -> Forwards:
    """What may take the place of the whole model's forward pass, if that is of a known form."""
    if not all({layer, _attention_of(layer)} <= found.keys() for layer in layers.values()):
        return {}
    norms = [found[each] for each in _body_of(network, layers).children() if each in found]
    tables = [seen.tables_of(each) for each in layers.values()]
    whole = find_model(network, ends, layers.values(), tables, norms)
    return {} if whole is None else {network: whole}


def _replace(forwards: Forwards) -> None:
    for module, forward in forwards.items():
        module.forward = forward


def _restore(forwards: Forwards) -> None:
    for module in forwards:
        del module.forward


def _probe(network: nn.Module, ends: Ends, gain: float = 1.0) -> Tensor:
    """Logits of a short sequence, with the output of the head multiplied by ``gain``."""
    head = network.get_submodule(ends.head)
    handle = head.register_forward_hook(lambda _, __, y: y * gain)
    tokens = torch.arange(proof.NUM_ROWS)
    rows = torch.tensor([5, 2, 6])
    try:
        return logits_of(network, tokens + 2, 3 * tokens, rows, gate.AttentionProbe())
    finally:
        handle.remove()


def _is_close(found: object, expected: Tensor) -> bool:
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    difference = (found - expected).abs().max() / expected.abs().max()
    return bool(difference <= _TOLERANCES[expected.dtype])


def _is_equal(found: object, expected: Tensor) -> bool:
    """Bit by bit: what lies around the layers is computed by the same code in the same order."""
    return isinstance(found, Tensor) and torch.equal(found, expected)


def _report(layers: Collection[nn.Module], found: Forwards, *, is_whole: bool) -> None:
    counts = [
        f"{sum(module in found for module in modules)} {what}"
        for what, modules in (
            ("layers", layers),
            ("attention modules", [_attention_of(layer) for layer in layers]),
            ("gated layers", [layer.get_submodule("mlp") for layer in layers]),
        )
    ]
    around = "and the model around them" if is_whole else "not the model around them"
    _log.info("of %d layers, compiled ops compute %s, %s", len(layers), ", ".join(counts), around)
