"""The plain computation of an adapter: one sequence, dense attention, torch alone, no cache.

The network and the adapter's weights are the engine's own, read once more; what is compared with it
is all that makes many requests one batch: paged attention, the layout of rows, compiled kernels.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import torch
from torch import Tensor

from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.lora_linear import AdapterRows, LoraRows
from loraplex.engine.model import LoadedModel
from loraplex.engine.self_test.comparison import Position, ServedTokens
from loraplex.engine.self_test.positions import positions_of
from loraplex.kernels.attention import Scoring
from loraplex.kernels.attention_reference import dense_attention_reference

T = TypeVar("T")


class _DenseStep:
    """Attention of one sequence; the model's layers call it."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:  # noqa: ARG002  of the protocol
        """See `gate.AttentionStep`."""
        return dense_attention_reference(q, k, v, scoring)


class DenseReference:
    """Runs on the engine's thread between steps, one sequence of a test at a time."""

    def __init__(
        self, model: LoadedModel, put_aside: Callable[[Callable[[], None]], object]
    ) -> None:
        """`put_aside` has something done on the engine's thread between two steps."""
        self._model = model
        self._put_aside = put_aside

    async def try_out(self, weights: AdapterWeights, prompt: Sequence[int]) -> None:
        """Compute a prompt once, apart from all other requests. Raises what computing it raises."""
        await self._between_steps(lambda: self._logits(prompt, 1, weights))

    async def judge(
        self, weights: AdapterWeights, served: Sequence[ServedTokens]
    ) -> list[tuple[Position, ...]]:
        """What the plain computation says of drawn tokens; an entry for each of `served`."""
        judged = []
        for each in served:
            logits, base_logits = [
                await self._between_steps(lambda each=each, w=w: self._after(each, w))  # type: ignore[misc]  # of defaults that bind
                for w in (weights, None)
            ]
            judged.append(positions_of(logits, base_logits, each.tokens))
        return judged

    async def _between_steps(self, work: Callable[[], T]) -> T:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  whatever it was, whoever waits must hear of it
                future.set_exception(error)

        self._put_aside(run)
        return await asyncio.wrap_future(future)

    def _after(self, served: ServedTokens, weights: AdapterWeights | None) -> Tensor:
        """Logits ``[tokens, vocab]`` from which each token was drawn, on the host."""
        ids = (*served.prompt, *served.tokens[:-1])
        return self._logits(ids, len(served.tokens), weights).cpu()

    @torch.inference_mode()
    def _logits(
        self, ids: Sequence[int], num_logits: int, weights: AdapterWeights | None
    ) -> Tensor:
        """Logits ``[num_logits, vocab]``, float32, of the last positions of one sequence."""
        device, length = self._model.device, len(ids)
        places = torch.arange(length, device=device)
        with self._model.lora.step(_rows(length, weights), _rows(num_logits, weights)):
            return self._model.logits(
                torch.tensor(ids, device=device), places, places[-num_logits:], _DenseStep()
            ).float()


def _rows(length: int, weights: AdapterWeights | None) -> LoraRows:
    return LoraRows.of(length, [] if weights is None else [AdapterRows(0, length, weights)])
