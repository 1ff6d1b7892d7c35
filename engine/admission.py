"""In which order waiting requests are offered to the scheduler."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Protocol

from loraplex.adapters.residency import State
from loraplex.engine.ahead_sample import Ahead, sampled
from loraplex.engine.request import Request
from loraplex.engine.waits import Reason


class Blocked(Enum):
    """Why a candidate could not start now."""

    LOADING = "its adapter is on its way; the load has just been started for it, or was under way"
    TRANSFERS = "as many bytes of adapters are on their way as may"
    ADAPTER_MEMORY = "there is no memory for its adapter"
    KV_BLOCKS = "there are too few KV blocks"
    SLOTS = "as many requests run as may"
    STEP = "the step is full"


WAITS_FOR_COPIES = frozenset({Blocked.LOADING, Blocked.TRANSFERS})
"""What is over by itself, whoever runs meanwhile."""
WAITS_FOR_ROOM = frozenset({Blocked.KV_BLOCKS, Blocked.ADAPTER_MEMORY, Blocked.TRANSFERS})
"""What others may take, if they start before."""
_REASONS: Mapping[Blocked, Reason] = {
    Blocked.SLOTS: "slot",
    Blocked.KV_BLOCKS: "kv",
    Blocked.ADAPTER_MEMORY: "adapter_memory",
    Blocked.STEP: "step",
    Blocked.TRANSFERS: "load",
}


def waits_for(refusal: Blocked | None, *, is_bounded: bool) -> Reason | None:
    """What keeps those from starting that are not said to wait for a load or their share, if the
    last candidate was refused so; `is_bounded` if a deadline took some of the step."""
    if refusal is Blocked.STEP and is_bounded:
        return "deadline"
    return "slot" if refusal is None else _REASONS.get(refusal)


class AdmissionView(Protocol):
    """What a policy may ask of the scheduler; nothing changes by asking. Times in ms."""

    def adapter_state(self, request: Request) -> State:
        """Where its adapter is; RESIDENT for the base model, and for one on whose way it may start;
        ABSENT while it is prefetched and no request has needed it yet."""
        ...

    @property
    def adapters_version(self) -> int:
        """A number that changes with `adapter_state` of any request."""
        ...

    @property
    def kept(self) -> Set[str]:
        """`Request.key` of those that wait and whose adapters stay until they run or end; see
        `AdmissionPolicy.keeps_adapter`."""
        ...

    def fits(self, request: Request) -> bool:
        """True if there are KV blocks for it now."""
        ...

    def cached_tokens(self, request: Request) -> int:
        """Tokens of it that need not be computed."""
        ...

    def predicted_ms(self, request: Request) -> float:
        """What all that is left of it costs the machine: prefill, decodes, load."""
        ...

    def load_ms(self, request: Request) -> float:
        """The load's part of that; 0 where none is needed, or another has paid for it. The first
        to use what was prefetched pays for it."""
        ...

    def restore_ms(self, request: Request) -> float:
        """What it costs to bring back what a preempted request had computed: to compute again what
        is not cached, or to copy it, there and back."""
        ...

    def predicted_run_ms(self, request: Request) -> float:
        """Wall time from its start to its end."""
        ...

    def predicted_wait_ms(self, request: Request) -> float:
        """Wall time until those that run will have left enough blocks and memory for it."""
        ...


class AdmissionPolicy(Protocol):
    """Owns the waiting requests and their order."""

    def add(self, request: Request, now: float) -> None:
        """Take a request that arrived at `now`."""
        ...

    def put_back(self, request: Request) -> None:
        """Take a request that lost its KV blocks: it was admitted before all that wait."""
        ...

    def remove(self, request: Request) -> None:
        """Forget a request that ended while it waited."""
        ...

    def __len__(self) -> int: ...

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterable[Ahead]:
        """A sample of the waiting requests that will likely start before one that comes now;
        `cost_ms` tells what each costs the machine."""
        ...

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:
        """Waiting requests in the order in which to try them.

        Lazy: after each, exactly one of `admitted` and `blocked` is called before the next is
        asked for. Whoever asks may stop at any time.
        """
        ...

    def admitted(self, request: Request) -> None:
        """The candidate runs, and waits no more."""
        ...

    def blocked(self, request: Request, by: Blocked) -> None:
        """The candidate could not start."""
        ...

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """After each step: what part of its time each request had, by `Request.key`."""
        ...

    def ended(self, request: Request) -> None:
        """An admitted request ended, or lost its KV blocks; then `put_back` follows."""
        ...

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:
        """True if a running request may take the blocks of another, which costs `recompute_ms` to
        compute again. False: it gives up its own instead."""
        ...

    def yields(self, request: Request) -> bool:
        """True if it runs only on what no other can use, and gives it back when one can."""
        ...

    def keeps_adapter(self, request: Request) -> bool:
        """True if a request whose load has just been started, or claimed, for it finds the adapter
        there when it can start, whatever others need meanwhile. It must be offered in each round
        of candidates from then on, whatever is refused to others, or what it keeps may never be
        free again."""
        ...

    def upcoming(self) -> Iterator[Request]:
        """Some of those that wait, the likeliest to be admitted next first; nothing changes."""
        ...


class FirstComeFirstServed:
    """Order of arrival, whoever sent them; a preempted request goes before all others.

    Who waits for a load is overtaken; who waits for memory is not, since those behind it would keep
    that memory busy. But those behind it go on whose adapters have been loaded for them: what they
    keep, one that was preempted may need, and it is free again when they have run. They are no more
    meanwhile, since nothing else is loaded.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._goes_on = True

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002  of the protocol
        """Append at the end."""
        self._waiting[request.key] = request

    def put_back(self, request: Request) -> None:
        """Insert at the front."""
        self._waiting[request.key] = request
        self._waiting.move_to_end(request.key, last=False)

    def remove(self, request: Request) -> None:
        """Forget it; it must be waiting."""
        del self._waiting[request.key]

    def __len__(self) -> int:
        return len(self._waiting)

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterable[Ahead]:  # noqa: ARG002  of the protocol
        """All that wait."""
        return sampled(self._waiting.values())

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:  # noqa: ARG002  of the protocol
        """All waiting requests, first come first; after one that waits for memory, those alone that
        keep an adapter."""
        self._goes_on = goes_on = True
        for request in list(self._waiting.values()):
            if not goes_on and not view.kept:
                return
            if goes_on or request.key in view.kept:
                yield request
                goes_on = goes_on and self._goes_on

    def admitted(self, request: Request) -> None:
        """Forget it."""
        del self._waiting[request.key]

    def blocked(self, request: Request, by: Blocked) -> None:  # noqa: ARG002  of the protocol
        """Go on behind a load, and behind nothing else."""
        self._goes_on = by in WAITS_FOR_COPIES

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Time is nothing to it; nor are the next."""

    def ended(self, request: Request) -> None:
        """See `measured`."""

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:  # noqa: ARG002  of the protocol
        """Who was admitted first always goes on."""
        return True

    def yields(self, request: Request) -> bool:  # noqa: ARG002  of the protocol
        """Nobody does."""
        return False

    def keeps_adapter(self, request: Request) -> bool:  # noqa: ARG002  of the protocol
        """All do: see `candidates`."""
        return True

    def upcoming(self) -> Iterator[Request]:
        """In their order."""
        yield from self._waiting.values()
