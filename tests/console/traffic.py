"""Believable tenants, usage and metrics, for screenshots and for pages that need rows."""

import math
import random
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import insert
from tests.console.platform import PEPPER, ConsolePlatform

from loraplex.adapters.registry.registry import Publication, publish
from loraplex.platform.console.composition import Console
from loraplex.tenants import api_keys, directory, key_changes, limit_changes, members
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.key_scopes import of_platform
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.limit_changes import NewLimit
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import Limits, TenantLimits
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.tables import UsageRow

TENANTS = {
    "acme": (("support", "triage"), TenantLimits(), 1.0, 34),
    "globex": (("sql", "extract"), TenantLimits(requests_per_minute=1200), 2.0, 27),
    "initech": (("calendar", "commit"), TenantLimits(), 1.0, 11),
    "hooli": (("mail", "search", "summary"), TenantLimits(tokens_per_minute=2_000_000), 3.0, 19),
    "umbrella": (("claims",), TenantLimits(concurrency=16), 1.0, 6),
    "stark": (("parts", "manuals"), TenantLimits(), 1.0, 9),
    "wonka": ((), TenantLimits(), 0.5, 0),
}
DAYS = 14
SUSPENDED = "umbrella"
WITH_BUDGET = "hooli"
EVERYWHERE = "olu@auditors.example"


@dataclass
class Story:
    """Makes the same platform each time, up to random ids."""

    platform: ConsolePlatform
    now: datetime
    random: random.Random

    async def tell(self, *, per_day: int = 40) -> None:
        """Tenants, keys, adapters, and the requests of two weeks."""
        for name, (adapters, limits, weight, share) in TENANTS.items():
            tenant = await self._tenant(name, limits, weight)
            keys = await self._keys(tenant)
            models = [await self._adapter(tenant, adapter) for adapter in adapters]
            if models:
                await self._requests(tenant, keys[0], models, per_day * share // 100)
            await self._people(tenant)
            await self._limits(tenant, keys[0])
        async with self.platform.resources.database.session() as session:
            suspended = await directory.get_by_name(session, SUSPENDED)
            await directory.suspend(session, Act(CLI, self.now), suspended.id)

    async def sample(self, minutes: float = 15) -> None:
        """The metrics of the last minutes, through the console's own sampler."""
        console: Console = self.platform.app.state.console
        worker = _Worker(self.random)
        num_samples = int(minutes * 30)
        for index in range(num_samples):
            self.platform.clock.fixed_s = self.now.timestamp() - 2 * (num_samples - 1 - index)
            self.platform.engine.metrics_text = worker.step(index)
            self._gateway(worker)
            await console.sampler.sample()

    def _gateway(self, worker: "_Worker") -> None:
        metrics = self.platform.app.state.services.metrics
        metrics.requests.labels("ok").inc(worker.ended)
        if self.random.random() < 0.06:
            metrics.requests.labels("rate_limited").inc(self.random.randint(1, 5))
        metrics.completion_tokens.inc(worker.output_tokens)
        for _ in range(worker.ended):
            metrics.ttft_s.observe(self.random.lognormvariate(-2.6 + worker.load / 2.2, 0.5))

    async def _people(self, tenant: TenantRecord) -> None:
        """Two members, the second of whom is everywhere."""
        grantor = of_platform(Act(CLI, self.now - timedelta(days=30)))
        async with self.platform.resources.database.session() as session:
            for email, role in (
                (f"dana@{tenant.name}.example", "tenant_admin"),
                (EVERYWHERE, "read_only"),
            ):
                await members.add(session, grantor, tenant.id, email, role, secrets.token_bytes)

    async def _limits(self, tenant: TenantRecord, key_id: str) -> None:
        """A budget of the tenant, limits of its default project and of its first key."""
        grantor = of_platform(Act(CLI, self.now - timedelta(days=20)))
        defaults = Limits(600, 600_000, 64)
        project_id = default_project_id(tenant.id)
        async with self.platform.resources.database.session() as session:
            budget = [("tenant", tenant.id, "tokens_per_month", NewLimit(50_000_000))]
            for scope, scope_id, dimension, limit in (
                *(budget if tenant.name == WITH_BUDGET else ()),
                ("project", project_id, "tokens_per_minute", NewLimit(200_000, burst=400_000)),
                ("key", key_id, "concurrency", NewLimit(8, mode="shadow")),
            ):
                owner = LimitOwner(tenant.id, scope, scope_id)
                await limit_changes.put(session, grantor, owner, dimension, limit, defaults)

    async def _tenant(self, name: str, limits: TenantLimits, weight: float) -> TenantRecord:
        made = self.now - timedelta(days=40, hours=self.random.randint(0, 200))
        async with self.platform.resources.database.session() as session:
            return await directory.create(
                session, name, made, secrets.token_bytes, weight=weight, limits=limits
            )

    async def _keys(self, tenant: TenantRecord) -> list[str]:
        ids = []
        async with self.platform.resources.database.session() as session:
            for label, age_d in (("production", 38), ("staging", 21), ("old laptop", 30)):
                at = self.now - timedelta(days=age_d)
                key = await api_keys.mint(session, tenant, label, PEPPER, at, secrets.token_bytes)
                ids.append(key.key_id)
            await key_changes.revoke(
                session, Act(CLI, self.now - timedelta(days=9)), tenant.id, ids[2]
            )
        return ids

    async def _adapter(self, tenant: TenantRecord, name: str) -> str:
        base = self.platform.engine.model.name
        versions = self.random.randint(1, 3)
        async with self.platform.resources.database.session() as session:
            for number in range(1, versions + 1):
                rank = self.random.choice((8, 16, 32))
                publication = Publication(
                    name, self.random.randbytes(32).hex(), rank, rank * 305_152, base
                )
                at = self.now - timedelta(days=30 / number, hours=self.random.randint(0, 20))
                published = await publish(session, tenant.id, publication, at)
        return f"{published.model}@{versions}"

    async def _requests(
        self, tenant: TenantRecord, key: str, models: list[str], per_day: int
    ) -> None:
        times = []
        for day in range(DAYS):
            end = self.now - timedelta(days=day)
            busy = 0.35 if end.weekday() >= 5 else 1.0
            times += [
                end - timedelta(hours=6.5 * self.random.betavariate(1.3, 1.6))
                for _ in range(int(per_day * busy * self.random.uniform(0.8, 1.2)))
            ]
        rows = [asdict(self._record(tenant, key, models, at)) for at in times]
        async with self.platform.resources.database.session() as session:
            await session.execute(insert(UsageRow), rows)

    def _record(
        self, tenant: TenantRecord, key: str, models: list[str], at: datetime
    ) -> UsageRecord:
        output = self.random.randint(12, 420)
        model = models[min(int(self.random.expovariate(1.4)), len(models) - 1)]
        queue_ms = self.random.expovariate(1 / 18)
        ttft = timedelta(milliseconds=queue_ms + self.random.uniform(35, 160))
        ending = self.random.choices(("stop", "length", "abort", "error"), (80, 14, 5, 1))[0]
        return UsageRecord(
            request_id=f"req_{self.random.randbytes(16).hex()}",
            tenant_id=tenant.id,
            project_id=default_project_id(tenant.id),
            key_id=key,
            requested_model=model.partition("@")[0],
            model=model,
            adapter_digest="d" * 64,
            prompt_tokens=self.random.randint(60, 1400),
            cached_tokens=0,
            completion_tokens=output,
            finish_reason=ending,
            accepted_at=at,
            first_token_at=at + ttft,
            finished_at=at + ttft + timedelta(milliseconds=output * 14),
            queue_ms=queue_ms,
        )


class _Worker:
    """A worker whose load comes and goes."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._steps = self._adapters = self._rows = 0.0
        self._drift = 0.0
        self.load = 0.0
        self.ended = 0
        self.output_tokens = 0

    def step(self, index: int) -> str:
        """Go on by two seconds and return the metrics text."""
        self._drift = 0.94 * self._drift + self._random.gauss(0, 0.06)
        wave = 0.55 + 0.2 * math.sin(index / 70) + 0.12 * math.sin(index / 23)
        self.load = min(1.0, max(0.12, wave + self._drift))
        self.ended = int(self.load * 5 + self._random.uniform(0, 1.6))
        self.output_tokens = sum(self._random.randint(30, 210) for _ in range(self.ended))
        steps = self._random.randint(56, 70)
        self._steps += steps
        self._adapters += steps * (1 + 6 * self.load + self._random.uniform(-0.4, 0.4))
        self._rows += self.output_tokens * 1.02 + self.ended * self._random.randint(230, 360)
        running = round(2 + 22 * self.load + self._random.uniform(-1, 1))
        waiting = max(0, round((self.load - 0.72) * 40 + self._random.uniform(-2, 2)))
        held = round(500 + 2900 * self.load + self._random.uniform(-60, 60))
        return (
            "# TYPE loraplex_step_adapters histogram\n"
            f'loraplex_step_adapters_bucket{{le="+Inf"}} {self._steps}\n'
            f"loraplex_step_adapters_count {self._steps}\n"
            f"loraplex_step_adapters_sum {self._adapters}\n"
            "# TYPE loraplex_step_tokens histogram\n"
            f'loraplex_step_tokens_bucket{{le="+Inf"}} {self._steps}\n'
            f"loraplex_step_tokens_count {self._steps}\nloraplex_step_tokens_sum {self._rows}\n"
            "# TYPE loraplex_worker_requests gauge\n"
            f'loraplex_worker_requests{{state="running"}} {running}\n'
            f'loraplex_worker_requests{{state="waiting"}} {waiting}\n'
            "# TYPE loraplex_kv_blocks gauge\n"
            f'loraplex_kv_blocks{{state="held"}} {held}\n'
            f'loraplex_kv_blocks{{state="free"}} {4096 - held}\n'
        )


async def believable(platform: ConsolePlatform, now: datetime, *, per_day: int = 40) -> None:
    """Fill a platform with two weeks of requests and a quarter of an hour of metrics."""
    platform.clock.fixed_s = now.timestamp()
    story = Story(platform, now, random.Random(7))
    await story.tell(per_day=per_day)
    await story.sample()
