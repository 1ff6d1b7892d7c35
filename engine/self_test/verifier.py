"""Tests a stored adapter before anybody may call it: a few requests, compared with a reference."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from loraplex.adapters.checkpoint import read_config
from loraplex.adapters.errors import AdapterMismatch
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.errors import AdapterOverCap, AdapterUnfit, EngineError, RequestFailed
from loraplex.engine.protocol import Sampling, SelfTest, ServiceTier, Submit, Verified, Verify
from loraplex.engine.self_test.comparison import (
    TOLERANCES,
    Comparison,
    Position,
    ServedTokens,
    compare,
    unfit,
)
from loraplex.engine.self_test.dense import DenseReference
from loraplex.engine.self_test.peft_oracle import OracleUnavailable, PeftOracle
from loraplex.engine.self_test.prompts import NUM_OUTPUT_TOKENS, ProbePrompt, make_prompts
from loraplex.engine.self_test.served import ServedPath
from loraplex.engine.self_test.turns import FairTurns

_log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""So long a test waits for what others leave of the machine; then it is its tenant's own work."""
SERVED_TIMEOUT_S = 60.0
NOT_FINITE = "not_finite"
"""Code of a request that failed since its adapter gives numbers that are none."""
_BUSY = "the worker is too busy; try again later"
_NOT_ASKED = "PEFT could not be asked, so the engine's own plain computation was"


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """The base model, and where its adapters come from."""

    vocab_size: int
    max_model_len: int
    dtype: str
    load: Callable[[str], AdapterWeights]
    """Reads an adapter by digest, as the reference computes it."""
    folder: Callable[[str], Path]
    """Folder of an adapter's files by digest; may fetch them."""


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What a reference said."""

    positions: Sequence[Sequence[Position]]
    versions: Mapping[str, str]
    is_peft: bool
    note: str = ""
    """Why it is not the one that was wished for."""


class Verifier:
    """Makes one test at a time; tenants whose tests wait take turns. Belongs to one event loop."""

    def __init__(
        self,
        model: VerifiedModel,
        served: ServedPath,
        dense: DenseReference,
        peft: PeftOracle,
        observe: Callable[[SelfTest | None, float], object],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`observe` is told of each test: its report, if any, and its seconds."""
        self._model = model
        self._served = served
        self._dense = dense
        self._peft = peft
        self._observe = observe
        self._patience_s = patience_s
        self._turns = FairTurns()

    async def verify(self, asked: Verify) -> Verified:
        """Make a test; what keeps it from being made is told in the answer, not raised. If this is
        cancelled, so are the test's requests, and the next one begins."""
        async with self._turns.turn(asked.tenant):
            started = perf_counter()
            report, message, is_over_cap = None, "", False
            try:
                report = await self._test(asked, started)
            except AdapterOverCap as error:
                message, is_over_cap = str(error), True
            except (EngineError, TimeoutError) as error:
                message = f"the adapter could not be tested: {str(error) or _BUSY}"
                _log.warning("adapter %s: %s", asked.adapter, message)
            except Exception:  # noqa: BLE001  whoever waits must get an answer
                message = "the adapter could not be tested; the operator's log has the reason"
                _log.exception("adapter %s could not be tested", asked.adapter)
            self._observe(report, perf_counter() - started)
            return Verified(
                query_id=asked.query_id, report=report, message=message, is_over_cap=is_over_cap
            )

    async def _test(self, asked: Verify, started: float) -> SelfTest:
        model = self._model
        folder = await asyncio.to_thread(model.folder, asked.adapter)
        config, _ = await asyncio.to_thread(read_config, folder)
        try:
            weights = await asyncio.to_thread(model.load, asked.adapter)
        except AdapterMismatch as error:
            return _report(unfit(str(error)), None, started)
        num_added = (weights.vocab_size or model.vocab_size) - model.vocab_size
        prompts = make_prompts(config, model.vocab_size, model.max_model_len, num_added)
        # A step that breaks fails all of its requests, so the adapter's first is no such step.
        await self._dense.try_out(weights, prompts[-1])
        try:
            served = await self._serve(asked, prompts)
        except AdapterUnfit as error:
            return _report(unfit(f"the worker cannot serve it: {error}"), None, started)
        except RequestFailed as error:
            if error.code != NOT_FINITE:
                raise
            return _report(unfit(f"as served {error}"), None, started)
        judgement = await self._judge(asked, folder, weights, served)
        comparison = compare(served, judgement.positions, TOLERANCES[model.dtype])
        return _report(comparison, judgement, started)

    async def _serve(self, asked: Verify, prompts: Sequence[ProbePrompt]) -> list[ServedTokens]:
        """Run all prompts at once: on what others leave, or else in the tenant's own share.

        Raises TimeoutError and what the requests end with.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._run_all(asked, prompts, "flex")
        except TimeoutError:
            async with asyncio.timeout(SERVED_TIMEOUT_S):
                return await self._run_all(asked, prompts, "default")

    async def _run_all(
        self, asked: Verify, prompts: Sequence[ProbePrompt], tier: ServiceTier
    ) -> list[ServedTokens]:
        requests = [self._served.run(_submit(asked, prompt, tier)) for prompt in prompts]
        tasks = [asyncio.ensure_future(request) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(
        self, asked: Verify, folder: Path, weights: AdapterWeights, served: Sequence[ServedTokens]
    ) -> _Judgement:
        note = ""
        if asked.may_use_peft:
            try:
                checked = await self._peft.judge(folder, served, weights.vocab_size)
                return _Judgement(checked.positions, checked.versions, is_peft=True)
            except OracleUnavailable as error:
                _log.warning("adapter %s is not tested with PEFT: %s", asked.adapter, error)
                note = _NOT_ASKED  # the reason is the operator's, the report the tenant's
        positions = await self._dense.judge(weights, served)
        return _Judgement(positions, {"torch": str(torch.__version__)}, is_peft=False, note=note)


def _submit(asked: Verify, prompt: ProbePrompt, tier: ServiceTier) -> Submit:
    return Submit(
        request_id=f"self-test-{secrets.token_hex(8)}",
        tenant=asked.tenant,
        adapter=asked.adapter,
        prompt=prompt.ids,
        adapter_start=prompt.adapter_start,
        sampling=Sampling(
            max_tokens=NUM_OUTPUT_TOKENS, temperature=0.0, seed=0, ignore_eos=True, top_logprobs=0
        ),
        weight=asked.weight,
        service_tier=tier,
    )


def _report(comparison: Comparison, judgement: _Judgement | None, started: float) -> SelfTest:
    note = "" if judgement is None else judgement.note
    return SelfTest(
        method="peft" if judgement is not None and judgement.is_peft else "reference",
        passed=comparison.passed,
        detail="; ".join(filter(None, (comparison.detail, note))),
        num_tokens=comparison.num_tokens,
        num_compared=comparison.num_compared,
        max_abs_logprob_diff=comparison.max_abs_logprob_diff,
        tolerance=comparison.tolerance,
        max_abs_change=comparison.max_abs_change,
        changes_output=comparison.max_abs_change > 0,
        took_ms=(perf_counter() - started) * 1e3,
        versions={} if judgement is None else dict(judgement.versions),
    )
