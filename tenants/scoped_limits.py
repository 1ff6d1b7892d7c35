"""One limit, whatever it limits: of a tenant, a project, a key or an adapter of the tenant."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from loraplex.tenants.periods import Period

Scope = Literal["tenant", "project", "key", "adapter"]
Dimension = Literal[
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "tokens_per_minute",
    "concurrency",
    "enqueued_tokens",
    "tokens_per_month",
    "cost_micros_per_month",
]
"""`concurrency` and `enqueued_tokens` bound what is open at a time: choices, and worst-case
tokens. Budgets per month are hard: what is used and what is reserved never exceed them together."""
MICROS = 1_000_000
"""Of which cost is counted, in one unit of the currency."""
Kind = Literal["rate", "gauge", "budget"]
Mode = Literal["enforce", "shadow"]
"""`shadow` counts and tells what it would have refused, and refuses nothing."""
OnStoreLoss = Literal["local", "open", "closed"]
"""While the store that gateways share is away: each gateway allows its part by itself; all is
allowed; nothing is. A budget is checked in the database instead, which is `local` to it."""

KINDS: Mapping[Dimension, Kind] = MappingProxyType(
    {
        "requests_per_minute": "rate",
        "input_tokens_per_minute": "rate",
        "output_tokens_per_minute": "rate",
        "tokens_per_minute": "rate",
        "concurrency": "gauge",
        "enqueued_tokens": "gauge",
        "tokens_per_month": "budget",
        "cost_micros_per_month": "budget",
    }
)
BUDGETS = tuple(dimension for dimension, kind in KINDS.items() if kind == "budget")

_NOUNS: Mapping[Dimension, str] = MappingProxyType(
    {
        "requests_per_minute": "requests per minute",
        "input_tokens_per_minute": "input tokens per minute",
        "output_tokens_per_minute": "output tokens per minute",
        "tokens_per_minute": "tokens per minute",
        "concurrency": "requests at a time",
        "enqueued_tokens": "tokens at a time",
        "tokens_per_month": "tokens per month",
        "cost_micros_per_month": "of cost per month",
    }
)


@dataclass(frozen=True, slots=True)
class BudgetPeriod:
    """The month that a budget is of, and which reckoning of it counts."""

    period: Period
    epoch: int
    """Of the row `budget_epoch`; a copy of another epoch is void, and is reckoned again."""


@dataclass(frozen=True, slots=True)
class ScopedLimit:
    """A limit that a request is admitted by."""

    scope: Scope
    scope_id: str
    """Id of the tenant, project or key; an adapter's name."""
    dimension: Dimension
    value: int
    """Per minute, at a time, or per month, in the dimension's unit."""
    burst: int
    """Of a rate, what may be used at once; else as `value`."""
    mode: Mode = "enforce"
    on_store_loss: OnStoreLoss = "local"
    budget: BudgetPeriod | None = None
    """Of budgets alone."""

    @property
    def kind(self) -> Kind:
        """How it is counted."""
        return KINDS[self.dimension]

    @property
    def name(self) -> str:
        """How messages and headers call it: `project/tokens_per_minute`."""
        return f"{self.scope}/{self.dimension}"

    @property
    def told(self) -> str:
        """How sentences call it: `The project's limit of 60000 tokens per minute`."""
        owner = f"Adapter {self.scope_id}" if self.scope == "adapter" else f"The {self.scope}"
        return f"{owner}'s limit of {self.shown(self.value)} {_NOUNS[self.dimension]}"

    def shown(self, amount: int) -> str:
        """Return an amount of the dimension for people: cost as a decimal number."""
        if self.dimension != "cost_micros_per_month":
            return str(amount)
        return f"{amount // MICROS}.{amount % MICROS:06d}"
