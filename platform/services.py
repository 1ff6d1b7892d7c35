"""What the gateway's routes work with; composed once, at start."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from loraplex.adapters.storage import Store
from loraplex.engine.client import EngineClient
from loraplex.platform.adapter_bytes import AdapterBytes, store_of
from loraplex.platform.adapter_deletions import AdapterDeletions
from loraplex.platform.adapter_pins import AdapterPins
from loraplex.platform.adapter_uses import AdapterUses
from loraplex.platform.admission import Admission
from loraplex.platform.catalogue import Catalogue
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.metrics import GatewayMetrics
from loraplex.platform.open_requests import OpenRequests
from loraplex.platform.profiles import Profiles
from loraplex.platform.prompts_of_engine import PromptsOfEngine
from loraplex.platform.reaper import Reaper
from loraplex.platform.reconciliation import Comparer, Reconciliation
from loraplex.platform.refusals import Refusals
from loraplex.platform.reservation_sweep import ReservationSweep
from loraplex.platform.settings import Settings
from loraplex.platform.standing_watch import StandingWatch
from loraplex.platform.template_process import TemplateLimits, TemplateProcesses
from loraplex.platform.tenant_deletions import TenantDeletions
from loraplex.platform.upload_slots import UploadSlots
from loraplex.tenants.db import Database
from loraplex.tenants.ids import Entropy, new_id
from loraplex.tenants.last_used import LastUsed
from loraplex.tenants.leases import Lease
from loraplex.tenants.limits import Limits
from loraplex.tenants.passwords import Passwords
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.tables import AdminKey, ApiKey

MAX_CHECKS = 2
"""Adapters that are checked at a time: each takes a core for a moment."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the gateway does not make itself."""

    settings: Settings
    database: Database
    quotas: Quotas
    engine: EngineClient
    pepper: bytes
    """Secret that key hashes are made with."""
    clock: Callable[[], float]
    """Seconds since the epoch; `time.time` outside tests."""
    entropy: Entropy
    """`secrets.token_bytes` outside tests."""
    registry: CollectorRegistry
    checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CHECKS))
    """Held while an uploaded adapter is checked."""

    store: Store = field(init=False)
    """Of adapters, the only one of this process."""
    adapter_bytes: AdapterBytes = field(init=False)
    upload_slots: UploadSlots = field(init=False)
    templates: TemplateProcesses = field(init=False)
    """In which adapters' chat templates run."""

    def __post_init__(self) -> None:
        """Make what follows from the settings; nothing is started."""
        settings = self.settings
        store = store_of(settings)
        object.__setattr__(self, "store", store)
        adapter_bytes = AdapterBytes(self.database, store, self.now)
        object.__setattr__(self, "adapter_bytes", adapter_bytes)
        slots = UploadSlots(settings.max_uploads, settings.max_tenant_uploads)
        object.__setattr__(self, "upload_slots", slots)
        object.__setattr__(self, "templates", template_processes(settings))

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.fromtimestamp(self.clock(), UTC)


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that serve requests."""

    resources: Resources
    catalogue: Catalogue
    prompts: PromptsOfEngine
    profiles: Profiles
    open_requests: OpenRequests
    reaper: Reaper
    reservation_sweep: ReservationSweep
    reconciliation: Reconciliation
    standing_watch: StandingWatch
    metrics: GatewayMetrics
    adapter_uses: AdapterUses
    adapter_deletions: AdapterDeletions
    adapter_pins: AdapterPins
    tenant_deletions: TenantDeletions
    last_used: LastUsed
    admin_last_used: LastUsed
    passwords: Passwords
    refusals: Refusals

    def now(self) -> datetime:
        """The time, in UTC."""
        return self.resources.now()


def default_limits(settings: Settings) -> Limits:
    """Limits of a tenant that has none of its own."""
    return Limits(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        concurrency=settings.concurrency,
    )


def template_processes(settings: Settings) -> TemplateProcesses:
    """Those in which adapters' chat templates run; none is started."""
    limits = TemplateLimits(
        settings.template_timeout_s, settings.template_memory_bytes, settings.template_processes
    )
    return TemplateProcesses(limits)


@dataclass(frozen=True, slots=True)
class Settlement:
    """The parts that see to it that each request is charged once."""

    open_requests: OpenRequests
    reaper: Reaper
    reservation_sweep: ReservationSweep
    reconciliation: Reconciliation


def build_settlement(resources: Resources, metrics: GatewayMetrics, gateway_id: str) -> Settlement:
    """Compose them."""
    database, quotas, engine, now = (
        resources.database,
        resources.quotas,
        resources.engine,
        resources.now,
    )
    lease = Lease(gateway_id, resources.settings.intent_lease_s)
    admission = Admission(quotas, database)
    open_requests = OpenRequests(
        engine, quotas, LedgerWriter(database, lease.max_backoff_s), admission, lease, metrics, now
    )
    comparer = Comparer(database, quotas, engine, now)
    reconciliation = Reconciliation(comparer, admission, metrics)
    reaper = Reaper(lease, database, engine, quotas, metrics, now)
    reaper.is_open_here = lambda request_id: open_requests.find(request_id) is not None
    reaper.on_reaped = reconciliation.soon
    sweep = ReservationSweep(lease, database, quotas, admission, now)
    return Settlement(open_requests, reaper, sweep, reconciliation)


def build_services(resources: Resources) -> Services:
    """Compose the parts. Nothing is started."""
    metrics = GatewayMetrics(resources.registry)
    metrics.quota_store_away.set_function(lambda: resources.quotas.is_degraded)
    uses = AdapterUses()
    pins = AdapterPins(resources.database, resources.engine, resources.clock)
    gateway_id = new_id("gtw", resources.now(), resources.entropy)
    deletions = AdapterDeletions(
        gateway_id,
        resources.database,
        resources.engine,
        resources.adapter_bytes,
        uses,
        resources.now,
    )
    deletions.on_drop = pins.again
    catalogue = Catalogue(
        resources.database,
        default_limits(resources.settings),
    )
    settlement = build_settlement(resources, metrics, gateway_id)
    return Services(
        resources=resources,
        catalogue=catalogue,
        prompts=PromptsOfEngine(
            resources.engine,
            resources.store,
            resources.templates,
            resources.now,
            resources.entropy,
        ),
        profiles=Profiles(resources.database),
        open_requests=settlement.open_requests,
        reaper=settlement.reaper,
        reservation_sweep=settlement.reservation_sweep,
        reconciliation=settlement.reconciliation,
        standing_watch=StandingWatch(catalogue, settlement.open_requests),
        metrics=metrics,
        adapter_uses=uses,
        adapter_pins=pins,
        adapter_deletions=deletions,
        tenant_deletions=TenantDeletions(resources.database, deletions, resources.now),
        last_used=LastUsed(ApiKey),
        admin_last_used=LastUsed(AdminKey),
        passwords=Passwords(),
        refusals=Refusals(),
    )
