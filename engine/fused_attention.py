"""Attention modules whose heads compiled ops normalise and turn to their positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from loraplex.engine import gate, proof
from loraplex.engine.fused_parts import Children, children_of, find_norm
from loraplex.kernels.attention import Scoring
from loraplex.kernels.elementwise import CpuElementwise, Norm

_PROJECTIONS = (("q_proj", "k_proj", "v_proj", "o_proj"), ("qkv_proj", "o_proj"))
_NORMS = ("q_norm", "k_norm")


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The forward pass of an attention module."""

    module: nn.Module
    children: Children
    ops: CpuElementwise
    layer: int
    scoring: Scoring
    kv_heads: int
    head_dim: int
    is_turned: bool
    """Whether heads are turned to their positions."""
    q_norm: Norm | None
    k_norm: Norm | None

    def __call__(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        step: gate.AttentionStep,
        attention_mask: Tensor | None = None,
        **options: Any,  # noqa: ANN401  checked below
    ) -> tuple[Tensor, None]:
        """Return ``[1, rows, width]`` for hidden states of that shape, as such modules do.

        Raises:
            ModelUnsupported: ``options`` ask for more than causal attention.
        """
        if attention_mask is not None or options:
            gate.check_attention_call(
                self.module, attention_mask, cast("gate.AttentionOptions", options)
            )
        q, k, v = self._heads(hidden_states)
        if self.is_turned:
            self.ops.rotary(q, k, *position_embeddings, self.q_norm, self.k_norm)
        attended = step.attend(self.layer, q, k, v, self.scoring)
        out: Tensor = self.children["o_proj"](attended.reshape(1, len(q), -1))
        return out, None

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        children = self.children
        if "qkv_proj" in children:
            qkv = children["qkv_proj"](x)
            kv_width = self.kv_heads * self.head_dim
            q, k, v = qkv.split([qkv.shape[-1] - 2 * kv_width, kv_width, kv_width], dim=-1)
        else:
            q, k, v = (children[name](x) for name in _PROJECTIONS[0][:3])
        num_rows, dim = x.shape[-2], self.head_dim
        return q.view(num_rows, -1, dim), k.view(num_rows, -1, dim), v.view(num_rows, -1, dim)


def find_attention(
    module: nn.Module, options: Mapping[str, Any], ops: CpuElementwise
) -> FusedAttention | None:
    """Return the forward pass of an attention module if it is one of those known.

    ``options`` are those of a call of it, but the hidden states.
    """
    names = next((each for each in _PROJECTIONS if proof.has_linears(module, each)), None)
    shell = names and proof.shell_of(module)
    if not names or shell is None or not {"position_embeddings", "step"} <= options.keys():
        return None
    x = proof.random_rows(getattr(module, names[0]).in_features, seed=5)
    record = proof.AttentionRecord()
    tried = proof.tried_options(options)
    expected = proof.result_of(shell, x, **{**tried, "step": record})
    call = record.only()
    if call is None or not isinstance(expected, tuple) or len(expected) != 2:
        return None
    for is_turned in (True, False):
        found_record = proof.AttentionRecord()
        fused = _fused(shell, ops, call, is_turned=is_turned)
        found = fused and proof.result_of(fused, x, **{**tried, "step": found_record})
        found_call = found_record.only()
        if found and found_call and found_call.agrees(call) and proof.agree(found[0], expected[0]):
            return _fused(module, ops, call, is_turned=is_turned)
    return None


def _fused(
    module: nn.Module, ops: CpuElementwise, call: proof.AttentionCall, *, is_turned: bool
) -> FusedAttention | None:
    """What computes ``call`` if the module is of this form; None if it has norms of another."""
    norms: list[Norm | None] = []
    for name in _NORMS:
        own = getattr(module, name, None)
        norm = find_norm(own, ops)
        if own is not None and (norm is None or not is_turned):
            return None
        norms.append(norm)
    _, kv_heads, head_dim = call.k.shape
    return FusedAttention(
        module=module,
        children=children_of(module),
        ops=ops,
        layer=call.layer,
        scoring=call.scoring,
        kv_heads=kv_heads,
        head_dim=head_dim,
        is_turned=is_turned,
        q_norm=norms[0],
        k_norm=norms[1],
    )
