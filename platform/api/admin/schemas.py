"""Bodies of the admin API's requests."""

from dataclasses import asdict, replace
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

    def over(self, limits: TenantLimits) -> TenantLimits:
        """The limits, with those changed that the body names."""
        return replace(limits, **self._named(limits))

    def over_adapters(self, limits: AdapterLimits) -> AdapterLimits:
        """The same for those of adapters."""
        return replace(limits, **self._named(limits))

    def _named(self, limits: TenantLimits | AdapterLimits) -> dict[str, int | None]:
        fields = asdict(limits)
        return {k: v for k, v in self.model_dump(exclude_unset=True).items() if k in fields}


class TenantBody(Schema):
    """A new tenant."""

    name: str
    weight: float = 1.0
    limits: LimitsBody = LimitsBody()


class ChangeBody(Schema):
    """What changes of a tenant; what is absent stays as it is."""

    weight: float | None = None
    limits: LimitsBody | None = None
    """Of its fields, too, only those that are there change; null takes the default again."""


class KeyBody(Schema):
    """A new API key."""

    label: str = ""
    expires_at: Moment | None = None


class PriceBody(Schema):
    """A new entry of the price book: millionths of the currency per million tokens."""

    currency: Annotated[str, Field(max_length=3)]
    prompt_micros: int
    cached_micros: int
    completion_micros: int
    valid_from: Moment | None = None
    """Default: now."""
