"""How a model of transformers is called for one packed step."""

from torch import Tensor, nn

from loraplex.engine import gate


def logits_of(
    network: nn.Module, input_ids: Tensor, positions: Tensor, rows: Tensor, step: gate.AttentionStep
) -> Tensor:
    """Return ``[n, vocab]``; see ``LoadedModel.logits``.

    The whole model is called, not its body and head: soft caps and scales lie between them.
    """
    output = network(
        input_ids=input_ids[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=rows,
        step=step,
    )
    logits: Tensor = output.logits[0]
    return logits
