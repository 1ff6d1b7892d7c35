"""The plain computation of an adapter: one sequence, dense attention, no cache, modules' own code.

What is compared with it is all that makes many requests one batch: paged attention, the layout of
rows, compiled low-rank updates, fused forward passes. Shared by both sides, so that an error there
would not show, are the network with the adapter's weights as the engine read them, and the base's
dense products: linear layers that see one input in one call, by whatever has packed their weights.
PEFT in a process of its own shares none of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.fused import own_code
from loraplex.engine.lora_rows import AdapterRows, LoraRows
from loraplex.engine.model import LoadedModel
from loraplex.engine.self_test.comparison import Position, ServedTokens
from loraplex.engine.self_test.positions import known_to_base, positions_of
from loraplex.engine.self_test.prompts import ProbePrompt
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

    async def try_out(self, weights: AdapterWeights, prompt: ProbePrompt) -> None:
        """Compute a prompt once, apart from all other requests. Raises what computing it raises."""
        await self._between_steps(lambda: self._logits(prompt, (), weights))

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
        return self._logits(served.prompt, served.tokens[:-1], weights).cpu()

    @torch.inference_mode()
    def _logits(
        self, prompt: ProbePrompt, output: Sequence[int], weights: AdapterWeights | None
    ) -> Tensor:
        """Logits ``[1 + output, vocab]``, float32, after the prompt and each further token."""
        ids = torch.tensor((*prompt.ids, *output), device=self._model.device)
        if weights is None:
            ids = known_to_base(ids, self._model.vocab_size)
        places = torch.arange(len(ids), device=ids.device)
        sampled = places[len(prompt.ids) - 1 :]
        body = _rows(len(ids), prompt.adapter_start, weights)
        rows_of_head = _rows(len(sampled), 0, weights)
        with self._model.lora.step(body, rows_of_head), own_code(self._model.network):
            return self._model.logits(ids, places, sampled, _DenseStep()).float()


def _rows(length: int, start: int, weights: AdapterWeights | None) -> LoraRows:
    """Rows of one sequence, on which the adapter acts from ``start`` on."""
    rows = [] if weights is None else [AdapterRows(start, length, weights)]
    return replace(LoraRows.of(length, rows), is_plain=True)
