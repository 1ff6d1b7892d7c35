"""What a request reserves before it runs, and what is given back when it has ended."""

from dataclasses import dataclass
from datetime import datetime

from loraplex.tenants.errors import RequestExceedsLimit
from loraplex.tenants.scoped_limits import Dimension, Scope, ScopedLimit
from loraplex.tenants.standings import Standing


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a request takes of each dimension: at most, or in the end."""

    input_tokens: int
    output_tokens: int
    """Of all choices."""
    cost_micros: int
    """Millionths of the currency, rounded up."""
    slots: int = 1
    """Choices that run at the same time."""
    requests: int = 1

    def __post_init__(self) -> None:
        if min(self.input_tokens, self.output_tokens, self.cost_micros) < 0:
            raise ValueError(f"amounts must not be negative: {self}")
        if min(self.slots, self.requests) < 0:
            raise ValueError(f"amounts must not be negative: {self}")

    def of(self, dimension: Dimension) -> int:
        """Return what counts against a limit of the dimension."""
        match dimension:
            case "requests_per_minute":
                return self.requests
            case "input_tokens_per_minute":
                return self.input_tokens
            case "output_tokens_per_minute":
                return self.output_tokens
            case "concurrency":
                return self.slots
            case "cost_micros_per_month":
                return self.cost_micros
            case "tokens_per_minute" | "enqueued_tokens" | "tokens_per_month":
                return self.input_tokens + self.output_tokens


NOTHING = Amounts(0, 0, 0, slots=0, requests=0)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one request asks for before it runs: its worst case."""

    request_id: str
    tenant_id: str
    limits: tuple[ScopedLimit, ...]
    """All that it is admitted by, of every scope, each once; those in shadow mode are there too."""
    worst: Amounts

    def refuse_impossible(self) -> None:
        """Raise RequestExceedsLimit for a limit that the request alone is larger than.

        A budget of 0 is exhausted instead: whoever set it means nobody to spend anything.
        """
        for limit in self.limits:
            asked = self.worst.of(limit.dimension)
            most = limit.burst if limit.value else 0
            is_closed = limit.kind == "budget" and limit.value == 0
            if limit.mode == "enforce" and asked > most and not is_closed:
                raise RequestExceedsLimit(limit, asked)


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation that was made; settle or release it once, when the request has ended."""

    reservation: Reservation
    standings: tuple[Standing, ...]
    """Of its limits, in their order; those that nobody counts while the store is away are left
    out."""
    shadowed: tuple[ScopedLimit, ...] = ()
    """Limits in shadow mode that would have refused it."""
    unchecked: tuple[ScopedLimit, ...] = ()
    """Budgets that were not counted, since the shared store is away. Who writes the intent raises
    their epochs in that transaction, since the store's copies lack this request, and refuses it
    where the database leaves too little of one, unless that one is `open` on the store's loss."""
    is_degraded: bool = False
    """True if the shared store is away."""

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.reservation.request_id


@dataclass(frozen=True, slots=True)
class Reckoning:
    """What a budget's use is, as the database knows it; it replaces what a store had."""

    limit: ScopedLimit
    """With the epoch that the reckoning is of."""
    spent: int
    """By requests that are in the ledger, and by adjustments; in the dimension's unit."""
    reserved: dict[str, int]
    """By open intents: request id to amount."""


@dataclass(frozen=True, slots=True)
class LapsedReservation:
    """What a request reserves of one budget, though its lease has long been over."""

    scope: Scope
    scope_id: str
    dimension: Dimension
    period_start: datetime
    request_id: str
