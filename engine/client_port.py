"""What the gateway needs of an engine. No torch."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from loraplex.engine.journal_protocol import JournalReport, JournalTotals
from loraplex.engine.protocol import Explained, Finished, ModelInfo, SelfTest, Submit, Tokens
from loraplex.engine.residency_protocol import Pins, ResidencyReport, Tier, Warm


class EngineClient(Protocol):
    """What the gateway needs of an engine."""

    @property
    def model(self) -> ModelInfo:
        """The base model, as the last worker introduced itself. Raises EngineUnavailable."""
        ...

    @property
    def connected(self) -> bool:
        """True while a worker can take requests."""
        ...

    @property
    def journal_failure(self) -> str:
        """Why the connected worker takes no requests, though it could: it cannot write its
        journal. Empty while it can, and while none is connected."""
        ...

    async def wait_connected(self) -> None:
        """Return when a worker is connected."""
        ...

    async def close(self) -> None:
        """Let go of the worker, which ends what is open. Once closed, it does nothing more."""
        ...

    def generate(self, submit: Submit) -> AsyncGenerator[Tokens | Finished, None]:
        """Run a request: tokens as they come, the last of each choice with its reason, then one
        Finished. Tokens of a choice that wait for the reader come as one item.

        Raises RequestRefused, EngineOverloaded or EngineNotReached before the first item,
        RequestFailed or EngineUnavailable at any time. Closing the iterator early aborts the
        request.
        """
        ...

    async def abort(self, request_id: str) -> Finished | None:
        """Abort and return the final usage; None if the worker is gone or never knew it."""
        ...

    async def why(self, request_id: str) -> Explained | None:
        """Why an open request waits; None if it is not open, or the worker does not answer within
        a second."""
        ...

    def drop(self, tenant: str, adapter: str) -> None:
        """Let the worker free what an adapter takes (`Drop`): this one, or the one connected
        next."""
        ...

    def pin(self, pins: Pins) -> None:
        """Let the worker keep these promises (`Pins`): this one, and each that connects from now
        on."""
        ...

    def warm(self, hint: Warm) -> None:
        """Let the worker bring an adapter to the device (`Warm`): this one, and for the rest of its
        time each that connects."""
        ...

    def hints_of(self, tenant: str) -> dict[str, float]:
        """For how many seconds each hint still holds that was given here for a tenant's adapters,
        by digest. The latest end holds; `drop` ends one."""
        ...

    async def tier(self, tenant: str, adapter: str) -> Tier | None:
        """Where an adapter is, after what was said to the worker before; None if it does not
        answer within a second."""
        ...

    async def metrics(self) -> str:
        """The worker's metrics as Prometheus text; empty if it does not answer within a second."""
        ...

    async def residency(self) -> ResidencyReport | None:
        """Which adapters are where in the worker's memory; None if it does not answer within a
        second."""
        ...

    async def journal(
        self, request_ids: Sequence[str], accepted_from_s: float = 0.0
    ) -> JournalReport | None:
        """What the worker's journal knows of requests (`JournalQuery`); None if it does not answer
        within 30 seconds."""
        ...

    async def journal_totals(self, from_s: float, until_s: float) -> JournalTotals | None:
        """Sums of the worker's journal by hour (`JournalTotalsQuery`); None if it does not answer
        within 30 seconds."""
        ...

    async def verify(
        self, tenant: str, adapter: str, weight: float = 1.0, *, may_use_peft: bool = True
    ) -> SelfTest:
        """Test a stored adapter of a tenant as `Verify` says; tests wait for each other.

        Raises EngineUnavailable if there is no worker, if it goes away, does not answer in time or
        cannot make the test: none of this says anything about the adapter.
        """
        ...
