"""A Redis or Valkey, one server or a cluster, as a place where scripts run."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from loraplex.tenants.errors import QuotaBackendUnavailable, QuotaStateUnreadable

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
"""To one server; calls beyond that wait."""
TIMEOUT_S = 1.0
"""For a connection, for one to become free, and for an answer."""
NUM_RETRIES = 2
CALL_TIMEOUT_S = 2.0
"""For one call with all its retries: each opens a connection, which may hang as well."""
RETRY_PAUSE_S = 0.05
PROBE_KEY = "{t:}:probe"
_IN_A_SCRIPT = "user_script"
"""Servers say so of what a script ran into."""
_SERVER_STATES = re.compile(
    r"\b(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOAUTH|NOPERM|NOREPLICAS|OOM|READONLY|TRYAGAIN)\b"
)
"""What a script runs into whatever its keys hold."""
CLUSTER_MARK = "+cluster"
"""In the scheme of a cluster's URL, `redis+cluster://…`: any of its nodes tells of the others."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the name that a server knows it by once it has run."""

    text: str
    sha: str

    @classmethod
    def of(cls, *names: str) -> Self:
        """Return the script of these files beside this one, one after the other."""
        folder = Path(__file__).parent
        return cls.of_text("".join((folder / name).read_text() for name in names))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the script of this text."""
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


_PROBE = Script.of_text("return redis.call('SET', KEYS[1], '', 'PX', 1)")


class RedisScripts:
    """Runs scripts whose repetition does no harm: a call whose answer is lost is made again.

    Every failure is told as QuotaBackendUnavailable: of the server, or, as QuotaStateUnreadable, of
    what the keys of a call hold.
    """

    def __init__(self, client: Redis | RedisCluster, name: str) -> None:
        """Take a client and what messages call it; use `open`."""
        self._client = client
        self._name = name
        self._sends_texts = False  # True once the server has refused EVALSHA
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)

    @classmethod
    def open(cls, url: str) -> Self:
        """Prepare the client of this URL; connections open when first used.

        Raises:
            QuotaBackendUnavailable: the URL is wrong.
        """
        options: dict[str, Any] = {
            "max_connections": MAX_CONNECTIONS,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(ConstantBackoff(RETRY_PAUSE_S), NUM_RETRIES),
        }
        client: Redis | RedisCluster
        try:
            if CLUSTER_MARK in url.split("://", maxsplit=1)[0]:
                client = RedisCluster.from_url(url.replace(CLUSTER_MARK, "", 1), **options)
            else:
                pool = BlockingConnectionPool.from_url(url, timeout=TIMEOUT_S, **options)
                client = Redis.from_pool(pool)
        except (ValueError, RedisClusterException):
            # What the parser says may hold a part of the password.
            raise QuotaBackendUnavailable(
                "The URL of the quota store cannot be parsed; it looks like "
                "redis://:password@host:6379, rediss://… with TLS, redis+cluster://… for a "
                "cluster, or unix:///path/to/socket."
            ) from None
        return cls(client, _shown(url))

    async def ping(self) -> None:
        """Raise QuotaBackendUnavailable unless all servers answer and scripts can write."""
        if isinstance(self._client, RedisCluster):
            with self._explaining_failures():
                await self._client.ping(target_nodes=RedisCluster.PRIMARIES)
        await self.run(_PROBE, [PROBE_KEY])

    async def eviction_policies(self) -> set[str]:
        """Return what servers do when they are full: `noeviction`, or whatever they remove."""
        with self._explaining_failures():
            if isinstance(self._client, RedisCluster):
                told = await self._client.info("memory", target_nodes=RedisCluster.PRIMARIES)
                return {str(each["maxmemory_policy"]) for each in told.values()}
            return {str((await self._client.info("memory"))["maxmemory_policy"])}

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def run(self, script: Script, keys: Sequence[str], *arguments: bytes) -> Any:  # noqa: ANN401  each script answers in its own way
        """Run a script on the server that has the keys, which are all in one slot."""
        num_keys = len(keys)
        given: list[str | bytes] = [*keys, *arguments]
        async with self._turns:
            with self._explaining_failures():
                async with self._in_time():
                    return await self._run(script, num_keys, given)

    async def _run(self, script: Script, num_keys: int, given: Sequence[str | bytes]) -> Any:  # noqa: ANN401  as above
        if not self._sends_texts:
            try:
                return await self._client.evalsha(script.sha, num_keys, *given)
            except NoScriptError:
                # A server that started again has forgotten it; EVAL makes it known.
                pass
            except NoPermissionError as error:
                self._sends_texts = True
                _log.warning(
                    "the quota store %s does not allow EVALSHA, so that each call carries "
                    "its script: %s",
                    self._name,
                    error,
                )
        return await self._client.eval(script.text, num_keys, *given)

    async def forget(self, keys: Sequence[str]) -> None:
        """Remove keys, which are all in one slot."""
        with self._explaining_failures():
            await self._client.delete(*keys)

    async def each(self, pattern: str) -> AsyncIterator[tuple[bytes, Any]]:
        """Yield keys that match the pattern, with what they hold: bytes, a hash or a set."""
        with self._explaining_failures():
            async for key in self._client.scan_iter(match=pattern):
                match await self._client.type(key):
                    case b"hash":
                        yield key, await self._client.hgetall(key)
                    case b"zset":
                        yield key, set(await self._client.zrange(key, 0, -1))
                    case _:
                        yield key, await self._client.get(key)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                yield
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {CALL_TIMEOUT_S} s") from error

    @contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, RedisClusterException, OSError) as error:
            reason = " ".join(str(error).split())
            if isinstance(error, ResponseError) and _is_of_the_keys(reason):
                raise QuotaStateUnreadable(
                    f"The quota store {self._name} cannot read what it has of the tenant: {reason}"
                ) from error
            raise QuotaBackendUnavailable(
                f"The quota store {self._name} cannot be used: {reason}"
            ) from error


def _is_of_the_keys(reason: str) -> bool:
    return _IN_A_SCRIPT in reason and _SERVER_STATES.search(reason) is None


def _shown(url: str) -> str:
    """Return the URL for messages, without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
