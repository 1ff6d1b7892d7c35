"""Decoder layers whose norms and residuals compiled ops compute."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from loraplex.engine import proof
from loraplex.engine.fused_parts import Children, children_of, find_norm
from loraplex.kernels.elementwise import CpuElementwise, Norm

_Places = tuple[str | None, str | None, str | None, str | None]

# Names of the norms before and after attention, then before and after the gated layer.
_PLACES: tuple[_Places, ...] = (
    (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ("input_layernorm", None, "post_attention_layernorm", None),
)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The forward pass of a decoder layer, with ``n`` for its norms, where it has them::

    h = x + scale * n(attention(n(x)))
    y = h + scale * n(mlp(n(h)))
    """

    children: Children
    ops: CpuElementwise
    scale: float
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None

    def __call__(self, hidden_states: Tensor, **options: Any) -> Tensor:  # noqa: ANN401  passed on as they are
        """Return ``[1, rows, width]`` for hidden states of that shape; the attention gets
        ``options``."""
        children, ops, norm = self.children, self.ops, self.before_attention
        x = hidden_states if norm is None else ops.rms_norm(hidden_states, norm)
        attended, _ = children["self_attn"](hidden_states=x, **options)
        h, x = ops.add_norm(
            attended, hidden_states, self.scale, self.after_attention, self.before_mlp
        )
        return ops.add_norm(children["mlp"](x), h, self.scale, self.after_mlp)[0]


def find_layer(
    module: nn.Module, options: Mapping[str, Any], ops: CpuElementwise
) -> FusedLayer | None:
    """Return the forward pass of a decoder layer if it is one of those known, whatever its
    attention and its ``mlp`` are.

    ``options`` are those of a call of it, but the hidden states.
    """
    if not {"position_embeddings", "step"} <= options.keys():
        return None
    for places in _PLACES:
        own = _fused(module, ops, places)
        if own is None:
            continue
        width = _width(own)
        stand_ins = {
            "self_attn": proof.AttentionStandIn(width),
            "mlp": proof.LinearStandIn(width, width, seed=6),
        }
        shell = proof.shell_of(module, stand_ins)
        tried = proof.tried_options(options)
        x = proof.random_rows(width, seed=7)
        expected = shell and proof.result_of(shell, x, **tried)
        fused = shell and _fused(shell, ops, places)
        if fused and proof.agree(proof.result_of(fused, x, **tried), expected):
            return own
    return None


def is_candidate(module: nn.Module) -> bool:
    """True if a module may be a decoder layer of the kind that `find_layer` knows."""
    return all(isinstance(getattr(module, name, None), nn.Module) for name in ("self_attn", "mlp"))


def _fused(module: nn.Module, ops: CpuElementwise, places: _Places) -> FusedLayer | None:
    """The form that has norms at all of ``places``; None if one of them is not there."""
    norms: list[Norm | None] = []
    for name in places:
        norm = None if name is None else find_norm(getattr(module, name, None), ops)
        if name is not None and norm is None:
            return None
        norms.append(norm)
    scale = getattr(module, "residual_multiplier", 1.0)
    return FusedLayer(children_of(module), ops, scale, *norms) if isinstance(scale, float) else None


def _width(layer: FusedLayer) -> int:
    norms = (layer.before_attention, layer.after_attention)
    return next(norm.gain.shape[0] for norm in norms if norm is not None)
