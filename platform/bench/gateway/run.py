"""`loraplex bench gateway`: what the gateway itself costs, per request and per streamed token.

A scripted worker answers and this process asks, each in a process of its own, so that processor
time of the gateway's process is the gateway's alone. It runs on one core where there are several.
"""

import asyncio
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from loraplex.platform.bench.gateway.http_load import (
    connections,
    send_at_rate,
    send_by_turns,
    send_each,
)
from loraplex.platform.bench.gateway.scripted import FLAT, PACED
from loraplex.platform.bench.gateway.store import running_store, scripts_per_s, store_program
from loraplex.platform.bench.gateway.subject import Stores, Subject, running_gateway

_US_PER_S = 1e6
_WARM_UP_S = 1.0
_MESSAGE = "Please tell me, in a few words, which of these adapters I should use for that. " * 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how long."""

    duration_s: float = 10.0
    """Of each of the two measurements of admissions."""
    num_clients: int = 32
    """Requests that are open at any time while admissions are counted."""
    rate_per_s: float = 300.0
    """At which requests come while the time of an admission is measured."""
    num_streams: int = 128
    paced_tokens: int = 250
    """Of each stream, one every `scripted.PACE_MS`."""
    flat_tokens: int = 1000
    repeats: int = 1
    """Times that streams are measured; the median counts."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GatewayCosts:
    """What was measured; processor times are of the gateway's process, all its threads."""

    admits_per_s: float
    """Requests from key to ledger, one token each, as many as it takes."""
    admit_p99_ms: float
    """From when a request was due to the first byte of its answer, at the plan's rate."""
    lua_per_s: float | None
    """Reservations with their settlements, by the time of the store's scripts alone; None where no
    store is installed."""
    cpu_us_per_request: float
    """While admissions are counted."""
    cpu_us_per_token_paced: float
    """Of a stream's tokens after its first; so below."""
    cpu_us_per_token_flat_out: float


async def measure_gateway(plan: Plan, stores: Stores, show: Callable[[str], None]) -> GatewayCosts:
    """Measure everything, one after the other. Raises BenchFailed."""
    async with running_gateway(stores) as subject:
        bench = _Bench(plan, subject, show)
        await bench.warm_up()
        admits_per_s, cpu_us_per_request = await bench.saturate()
        admit_p99_ms = await bench.admit_at_rate()
        paced_us = await bench.tokens(PACED, plan.paced_tokens)
        flat_us = await bench.tokens(FLAT, plan.flat_tokens)
    lua_per_s = await _lua_per_s(plan, stores, show)
    return GatewayCosts(
        admits_per_s=round(admits_per_s, 1),
        admit_p99_ms=round(admit_p99_ms, 2),
        lua_per_s=lua_per_s,
        cpu_us_per_request=round(cpu_us_per_request, 1),
        cpu_us_per_token_paced=round(paced_us, 2),
        cpu_us_per_token_flat_out=round(flat_us, 2),
    )


async def _lua_per_s(plan: Plan, stores: Stores, show: Callable[[str], None]) -> float | None:
    """By the store that is given, else by one that is started; None where there is none."""
    program = store_program()
    if stores.redis_url is None and program is None:
        show("no valkey-server or redis-server is installed, so the store's scripts are left out")
        return None
    show(f"reserving and settling in the store, for {plan.duration_s:g} s")
    if stores.redis_url is not None:
        return round(await scripts_per_s(stores.redis_url, plan.duration_s), 1)
    assert program is not None
    async with running_store(program) as url:
        return round(await scripts_per_s(url, plan.duration_s), 1)


class _Bench:
    """The measurements of one gateway."""

    def __init__(self, plan: Plan, subject: Subject, show: Callable[[str], None]) -> None:
        self._plan = plan
        self._subject = subject
        self._show = show

    async def warm_up(self) -> None:
        """Have whatever is loaded once be loaded."""
        self._show("warming up")
        async with connections(self._subject.server, self._plan.num_clients) as opened:
            await send_by_turns(opened, self._requests(FLAT, 1), _WARM_UP_S)

    async def saturate(self) -> tuple[float, float]:
        """As many requests as it takes: per second, and processor time of each in µs."""
        plan = self._plan
        self._show(f"admitting as many as it takes, for {plan.duration_s:g} s")
        requests = self._requests(FLAT, 1)
        async with connections(self._subject.server, plan.num_clients) as opened:
            loop_time = asyncio.get_running_loop().time
            begun_s, cpu_s = loop_time(), self._subject.cpu_s()
            ended = await send_by_turns(opened, requests, plan.duration_s)
            took_s, used_s = loop_time() - begun_s, self._subject.cpu_s() - cpu_s
        return ended / took_s, used_s / ended * _US_PER_S

    async def admit_at_rate(self) -> float:
        """The time of an admission at the plan's rate, P99 in ms."""
        plan = self._plan
        self._show(f"admitting {plan.rate_per_s:g} a second, for {plan.duration_s:g} s")
        requests = self._requests(FLAT, 1)
        async with connections(self._subject.server, plan.num_streams) as opened:
            waits_s = await send_at_rate(
                opened, requests, plan.rate_per_s, plan.duration_s, plan.seed
            )
        return sorted(waits_s)[int(0.99 * len(waits_s))] * 1e3

    async def tokens(self, kind: str, number: int) -> float:
        """Processor time of a token in µs: streams of `number` more than one, less those of one."""
        found = []
        for _ in range(self._plan.repeats):
            self._show(f"streaming {number} tokens on each of {self._plan.num_streams}, {kind}")
            short_s = await self._stream(kind, 1)
            long_s = await self._stream(kind, 1 + number)
            found.append((long_s - short_s) / (self._plan.num_streams * number))
        return statistics.median(found) * _US_PER_S

    async def _stream(self, kind: str, num_tokens: int) -> float:
        """Processor time of as many streams of so many tokens, from when all have begun, in s."""
        begun_s = 0.0

        def note() -> None:
            nonlocal begun_s
            begun_s = self._subject.cpu_s()

        requests = self._requests(kind, num_tokens, self._plan.num_streams)
        async with connections(self._subject.server, self._plan.num_streams) as opened:
            some = [requests[n % len(requests)] for n in range(len(opened))]
            await send_each(opened, some, note)
            return self._subject.cpu_s() - begun_s

    def _requests(self, kind: str, num_tokens: int, at_once: int = 1) -> list[bytes]:
        """One of each adapter, each with a prompt of its own."""
        bodies = (
            {
                "model": model,
                "messages": [{"role": "user", "content": f"{number}. {_MESSAGE}"}],
                "max_tokens": num_tokens,
                "stream": True,
            }
            for number, model in enumerate(self._subject.models)
        )
        server, program = self._subject.server, f"{kind} {at_once}"
        return [server.request(json.dumps(body).encode(), program) for body in bodies]
