"""What an adapter does to parameters that hold experts."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ExpertPairs:
    """Low-rank updates of the matrices in one parameter: of expert e, W += scale · B[e] A[e].

    Source: `peft.tuners.lora.layer.ParamWrapper` (https://github.com/huggingface/peft, 0.21).
    """

    a: Tensor
    """[experts, rank, in], contiguous."""
    b: Tensor
    """[experts, out, rank], contiguous."""
    scale: float

    @classmethod
    def of(cls, a: Tensor, b: Tensor, rank: int, scale: float) -> "ExpertPairs":
        """From what files hold: ``a [rank · experts, in]``, expert after expert, and
        ``b [out, rank · experts]``, in which the expert runs fastest."""
        return cls(
            a.reshape(-1, rank, a.shape[1]),
            b.reshape(b.shape[0], rank, -1).permute(2, 0, 1).contiguous(),
            scale,
        )

    def delta(self) -> Tensor:
        """What is added to the experts' matrices, ``[experts, out, in]``."""
        return self.scale * (self.b @ self.a)
