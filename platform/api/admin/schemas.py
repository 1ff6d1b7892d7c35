"""Bodies of the admin API's requests."""

from dataclasses import fields
from typing import Annotated

from pydantic import Field

from loraplex.platform.api.bodies import Schema
from loraplex.platform.api.moments import Moment
from loraplex.tenants.limits import AdapterLimits, TenantLimits


class LimitsBody(Schema):
    """Limits; null or absent takes the platform's default, which for adapters is none."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    ttft_deadline_ms: int | None = None
    """Of requests that name none; null refuses none for it."""
    adapter_storage_bytes: int | None = None
    """Most that its adapters may take in the store."""
    adapter_max_rank: int | None = None
    adapter_max_modules: int | None = None
    adapter_floor_bytes: int | None = None
    """Of the device's memory, what others cannot push its adapters out of."""
    adapter_cap_bytes: int | None = None
    """Most that its adapters may take of the device's memory."""
    adapter_pin_bytes: int | None = None
    """Most that it may pin; null lets it pin nothing."""
    adapter_host_floor_bytes: int | None = None
    """Of the host's memory, what others cannot push its adapters out of."""
    adapter_host_cap_bytes: int | None = None
    """Most that its adapters may take of the host's memory."""

    def named(self, of: type[TenantLimits | AdapterLimits]) -> dict[str, int | None]:
        """Those limits that the body names, of one kind."""
        known = {field.name for field in fields(of)}
        return {k: v for k, v in self.model_dump(exclude_unset=True).items() if k in known}


class TenantBody(Schema):
    """A new tenant."""

    name: str
    weight: float = 1.0
    limits: LimitsBody = LimitsBody()
    service_tiers: list[str] | None = None
    """Those that its requests may ask for; null allows all."""
    time_zone: str | None = None
    """IANA name of the zone in which its months begin; null is UTC."""


class ChangeBody(Schema):
    """What changes of a tenant; what is absent stays as it is."""

    weight: float | None = None
    limits: LimitsBody | None = None
    """Of its fields, too, only those that are there change; null takes the default again."""
    service_tiers: list[str] | None = None
    """Those that its requests may ask for."""
    time_zone: str | None = None
    """IANA name of the zone in which its months begin."""


class ReasonBody(Schema):
    """Why something is done."""

    reason: str = ""


class AdminKeyBody(Schema):
    """A new key of an operator."""

    label: str = ""
    role: str
    """`owner`, `operator`, `finance` or `read_only`."""
    expires_at: Moment | None = None


class PriceBody(Schema):
    """A new entry of the price book: millionths of the currency per million tokens."""

    currency: Annotated[str, Field(max_length=3)]
    prompt_micros: int
    cached_micros: int
    completion_micros: int
    valid_from: Moment | None = None
    """Default: now."""
