"""Quotas that several gateways share, in Redis 6.2 or newer or in Valkey.

The store is a disposable cache. Should it lose its data, then requests that are open are counted no
longer, and each tenant may use one more minute's worth. It must not evict keys, which would be the
same without notice: `maxmemory-policy noeviction`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import NoScriptError, RedisError

from loraplex.tenants.errors import (
    QuotaBackendUnavailable,
    QuotaExceeded,
)
from loraplex.tenants.limits import Limits
from loraplex.tenants.quotas import (
    CONCURRENCY_RETRY_S,
    Hold,
    InUse,
    Rate,
    Reservation,
    confirm_size,
)

MS_PER_S = 1000
LEASE_S = 60.0
"""Three times the pause between renewals: a gateway that died gives its slots back after this."""
MAX_CONNECTIONS = 32
TIMEOUT_S = 1.0
"""For a connection, for one to become free, and for an answer."""
NUM_RETRIES = 2
RETRY_PAUSE_S = 0.05
"""Repeating a call is safe: each is idempotent by the request's id."""


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    sha: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the script of this file, after what both share."""
        folder = Path(__file__).parent
        text = (folder / "quotas_state.lua").read_text() + (folder / name).read_text()
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class RedisQuotas:
    """Quotas in one key per tenant, changed by two scripts; time is the server's.

    Levels are in unit·ms where those of `MemoryQuotas` are in unit·ns, so that Lua's numbers, which
    are exact up to 2⁵³, hold the highest limit. Each call costs time in proportion to the tenant's
    open holds.
    """

    def __init__(
        self,
        client: Redis,
        name: str,
        defaults: Limits,
        lease_s: float = LEASE_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        """Take a client and what messages call it; use `open`.

        `clock_ms` replaces the server's clock, the only one that all gateways share, in tests.
        """
        self._client = client
        self._name = name
        self._defaults = defaults
        self._lease_ms = round(lease_s * MS_PER_S)
        self._clock_ms = clock_ms
        self._admit = _Script.of("quotas_admit.lua")
        self._settle = _Script.of("quotas_settle.lua")

    @classmethod
    def open(
        cls,
        url: str,
        defaults: Limits,
        lease_s: float = LEASE_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> Self:
        """Prepare the quotas of this URL; connections open when first used.

        Raises:
            QuotaBackendUnavailable: the URL is wrong.
        """
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(ConstantBackoff(RETRY_PAUSE_S), NUM_RETRIES),
            )
        except ValueError:
            # What the parser says may hold a part of the password.
            raise QuotaBackendUnavailable(
                "The URL of the quota store cannot be parsed; it looks like "
                "redis://:password@host:6379, rediss://… with TLS, or unix:///path/to/socket."
            ) from None
        return cls(Redis.from_pool(pool), _shown(url), defaults, lease_s, clock_ms)

    async def ping(self) -> None:
        """Raise QuotaBackendUnavailable unless the store answers."""
        with self._explaining_failures():
            await self._client.time()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def reserve(self, request: Reservation) -> Hold:
        """See `Quotas.reserve`. Raises QuotaBackendUnavailable too, like all methods."""
        limits = request.limits.over(self._defaults)
        request.refuse_impossible(limits)
        verdict, *told = await self._run(
            self._admit,
            request.tenant_id,
            request.request_id,
            request.tokens,
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.concurrency,
            self._lease_ms,
            round(CONCURRENCY_RETRY_S * MS_PER_S),
            request.slots,
        )
        if verdict == b"refused":
            raise _refusal(told[0].decode(), told[1], limits)
        return confirm_size(_hold(request, told[0], told[1]), request)

    async def renew(self, hold: Hold) -> None:
        """See `Quotas.renew`."""
        await self._change(hold, "renew", self._lease_ms)

    async def settle(self, hold: Hold, actual_tokens: int) -> None:
        """See `Quotas.settle`."""
        if actual_tokens < 0:
            raise ValueError(f"actual_tokens must not be negative, got {actual_tokens}")
        await self._change(hold, "settle", 0, hold.tokens - actual_tokens)

    async def release(self, hold: Hold) -> None:
        """See `Quotas.release`."""
        await self._change(hold, "settle", 1, hold.tokens)

    async def in_use(self, tenant_id: str) -> InUse:
        """See `Quotas.in_use`."""
        asked = self._client.pipeline(transaction=False)
        asked.time()
        asked.get(_key(tenant_id))
        with self._explaining_failures():
            (seconds, microseconds), packed = await asked.execute()
        now_ms = seconds * MS_PER_S + microseconds // MS_PER_S
        if self._clock_ms is not None:
            now_ms = self._clock_ms()
        if packed is None:
            return InUse(0, 0, 0)
        holds = msgspec.msgpack.decode(packed)["holds"]
        columns = zip(holds["sizes"], holds["slots"], holds["ends_ms"], strict=True)
        held = [(tokens, slots) for tokens, slots, end_ms in columns if end_ms > now_ms]
        return InUse(len(held), sum(tokens for tokens, _ in held), sum(slots for _, slots in held))

    async def check(self) -> None:
        """See `Quotas.check`."""
        with self._explaining_failures():
            async for key in self._client.scan_iter(match=_key("*")):
                packed: Any = await self._client.get(key)
                if packed is not None:
                    _check(msgspec.msgpack.decode(packed), key)

    async def _change(self, hold: Hold, *arguments: str | int) -> None:
        await self._run(self._settle, hold.tenant_id, hold.request_id, hold.tokens, *arguments)

    async def _run(self, script: _Script, tenant_id: str, *arguments: str | int) -> Any:  # noqa: ANN401  each script answers in its own way
        now_ms = "" if self._clock_ms is None else self._clock_ms()
        given = (_key(tenant_id), now_ms, *arguments)
        with self._explaining_failures():
            try:
                return await self._client.evalsha(script.sha, 1, *given)
            except NoScriptError:
                # A server that started again has forgotten it; EVAL makes it known.
                return await self._client.eval(script.text, 1, *given)

    @contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            reason = " ".join(str(error).split())
            raise QuotaBackendUnavailable(
                f"The quota store {self._name} cannot be used: {reason}"
            ) from error


def _key(tenant_id: str) -> str:
    """Return the tenant's key; in a cluster all keys of one hash tag are on one node."""
    return f"{{t:{tenant_id}}}:quotas"


def _hold(request: Reservation, tokens: int, answer: bytes) -> Hold:
    rates = [int(number) for number in answer.split()]
    return Hold(
        request_id=request.request_id,
        tenant_id=request.tenant_id,
        tokens=tokens,
        requests_rate=Rate(rates[0], rates[1], rates[2] / MS_PER_S),
        tokens_rate=Rate(rates[3], rates[4], rates[5] / MS_PER_S),
    )


def _refusal(dimension: str, wait_ms: int, limits: Limits) -> QuotaExceeded:
    wait_s = wait_ms / MS_PER_S
    if dimension == "concurrency":
        return QuotaExceeded("concurrency", limits.concurrency, wait_s)
    if dimension == "requests":
        return QuotaExceeded("requests", limits.requests_per_minute, wait_s)
    return QuotaExceeded("tokens", limits.tokens_per_minute, wait_s)


def _check(state: dict[str, Any], key: bytes) -> None:
    num_holds = len(set(state["holds"]["ids"]))
    for column in state["holds"].values():
        assert len(column) == num_holds, key
    for bucket in (state["requests"], state["tokens"]):
        floors = bucket["floors"]
        assert len(floors) == num_holds, key
        assert sorted(floors, reverse=True) == floors, key
        assert all(0 <= floor <= bucket["level"] for floor in floors), key


def _shown(url: str) -> str:
    """Return the URL for messages, without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
