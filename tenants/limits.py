"""Limits of a tenant: the platform's, and what a tenant has of its own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may use; all ≥ 1."""

    requests_per_minute: int
    tokens_per_minute: int
    """Prompt and output tokens together."""
    concurrency: int
    """Requests that run at the same time."""

    def __post_init__(self) -> None:
        if min(self.requests_per_minute, self.tokens_per_minute, self.concurrency) < 1:
            raise ValueError(f"limits must be at least 1: {self}")


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant's own limits; None takes the platform's default."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    ttft_deadline_ms: int | None = None
    """Requests whose first token cannot come so soon are refused, where they name no deadline of
    their own; None refuses none."""

    def over(self, defaults: Limits) -> Limits:
        """Return the limits that hold, with the platform's defaults filled in."""
        return Limits(
            requests_per_minute=self.requests_per_minute or defaults.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute or defaults.tokens_per_minute,
            concurrency=self.concurrency or defaults.concurrency,
        )


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """What a tenant's adapters may take; named as the tenant's columns are."""

    adapter_storage_bytes: int | None = None
    """Most that its adapters may take in the store, equal bytes once; None sets no limit."""
    adapter_max_rank: int | None = None
    """Largest rank of an adapter; None sets no limit but the platform's."""
    adapter_max_modules: int | None = None
    """Most modules that one adapter may change; None sets no limit."""
    adapter_floor_bytes: int | None = None
    """Of the device's memory, what others cannot push its adapters out of; None is 0."""
    adapter_cap_bytes: int | None = None
    """Most that its adapters may take of the device's memory; None sets no limit."""
    adapter_pin_bytes: int | None = None
    """Most that it may pin; None lets it pin nothing."""
    adapter_host_floor_bytes: int | None = None
    """Of the host's memory behind the device, what others cannot push its adapters out of."""
    adapter_host_cap_bytes: int | None = None
    """Most that its adapters may take of that; None sets no limit."""
