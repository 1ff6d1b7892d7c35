"""An open loop: requests are sent when they are due, whatever the server makes of them."""

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from loraplex.platform.load.arrivals import Arrival
from loraplex.platform.load.client import Target, send
from loraplex.platform.load.errors import LoadRefused
from loraplex.platform.load.outcome import (
    NOT_SENT_CONCURRENCY,
    NOT_SENT_TIME,
    OK,
    UNFINISHED,
    Outcome,
)

PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a run ends, whatever happens."""

    max_seconds: float
    max_concurrency: int
    """Requests in flight; one that is due above that is not sent, and counted as an error. Were it
    held back instead, the loop would close and a slow server would be asked less."""


def check_url(url: str, *, allow_remote: bool) -> str:
    """Return the root of the server. Raises LoadRefused for other hosts unless that is allowed."""
    try:
        parsed = httpx.URL(url.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL as error:
        raise LoadRefused(f"--url {url!r} is no URL: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise LoadRefused(f"--url {url!r} is not like http://127.0.0.1:8000")
    if not (allow_remote or _is_loopback(parsed.host)):
        raise LoadRefused(
            f"{parsed.host} is not this machine; load on other people's servers is an attack, so "
            "say --allow-remote if it is yours"
        )
    return str(parsed)


def new_client(url: str, key: str | None, max_concurrency: int) -> httpx.AsyncClient:
    """A client with a connection for each request in flight, and never a proxy in between."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"content-type": "application/json"}
        | ({"authorization": f"Bearer {key}"} if key else {}),
        limits=httpx.Limits(
            max_connections=max_concurrency + 1, max_keepalive_connections=max_concurrency + 1
        ),
        timeout=httpx.Timeout(None, connect=10.0),
        trust_env=False,
    )


async def run_load(
    target: Target,
    arrivals: Sequence[Arrival],
    bounds: Bounds,
    seed: int,
    on_progress: Callable[[str], None],
) -> list[Outcome]:
    """Send every arrival at its time; return what became of each, in the order of arrival."""
    run = _Run(target, arrivals, bounds, seed)
    reporting = asyncio.create_task(run.report(on_progress))
    try:
        return await run.outcomes()
    finally:
        reporting.cancel()
        on_progress(run.progress())


class _Run:
    def __init__(
        self, target: Target, arrivals: Sequence[Arrival], bounds: Bounds, seed: int
    ) -> None:
        self._target = target
        self._arrivals = arrivals
        self._bounds = bounds
        self._seed = seed
        self._started_s = asyncio.get_running_loop().time()
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._num_sent = 0

    def now_s(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._started_s

    async def outcomes(self) -> list[Outcome]:
        """Run to the end, or to its bound."""
        try:
            async with asyncio.timeout_at(self._started_s + self._bounds.max_seconds):
                for index, arrival in enumerate(self._arrivals):
                    await self._dispatch(index, arrival)
                await asyncio.gather(*self._in_flight.values())
        except TimeoutError:
            await self._cut_off()
        for index, arrival in enumerate(self._arrivals):
            not_sent = Outcome(arrival.model, arrival.at_s, NOT_SENT_TIME)
            self._outcomes.setdefault(index, not_sent)
        return [self._outcomes[index] for index in range(len(self._arrivals))]

    async def report(self, on_progress: Callable[[str], None]) -> None:
        """Tell the progress again and again."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            on_progress(self.progress())

    def progress(self) -> str:
        """Where the run stands."""
        num_ok = sum(outcome.status == OK for outcome in self._outcomes.values())
        num_failed = len(self._outcomes) - num_ok
        return (
            f"{self.now_s():.0f} s: {self._num_sent} of {len(self._arrivals)} sent, {num_ok} ended "
            f"well, {num_failed} did not, {len(self._in_flight)} in flight"
        )

    async def _dispatch(self, index: int, arrival: Arrival) -> None:
        body = self._target.body(arrival, (self._seed, index))
        # Also where it is late: what has arrived in the meantime must be read.
        await asyncio.sleep(max(0.0, arrival.at_s - self.now_s()))
        if len(self._in_flight) >= self._bounds.max_concurrency:
            self._outcomes[index] = Outcome(arrival.model, arrival.at_s, NOT_SENT_CONCURRENCY)
            return
        self._num_sent += 1
        self._in_flight[index] = asyncio.create_task(self._send(index, arrival, body))

    async def _send(self, index: int, arrival: Arrival, body: bytes) -> None:
        sent_s = self.now_s()
        try:
            self._outcomes[index] = await send(self._target, arrival, body, self.now_s)
        except asyncio.CancelledError:
            self._outcomes[index] = Outcome(arrival.model, arrival.at_s, UNFINISHED, sent_s)
            raise
        finally:
            self._in_flight.pop(index, None)

    async def _cut_off(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
