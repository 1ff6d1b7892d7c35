"""Errors of the engine, split by whose fault they are. No HTTP here.

EngineError
├── RequestRefused      the request itself cannot be served (never retried)
│   └── AdapterOverCap      …because its adapter alone exceeds what the tenant may hold
├── EngineOverloaded    the engine's queues are full (retry later)
│   ├── DeadlineUnreachable …or so long that the request's own deadline would be missed
│   └── JournalUnavailable  …not, but what a request uses could not be recorded
├── EngineUnavailable   no worker is connected, or it died while the request ran
│   └── EngineNotReached    …before anything of the request was sent
├── RequestFailed       this request failed while it ran; others were not affected
│   └── AdapterUnfit        …because its adapter does not fit the base model that is served
├── ModelUnsupported    the base model cannot be served right, and why
├── CostModelInvalid    a saved cost model cannot be read
└── StartRefused        a worker cannot start as configured
    ├── MemoryTooSmall
    ├── KernelsMissing
    ├── AddressInUse
    ├── JournalInUse
    └── StreamAddressInvalid

EngineCrashed is none of them: nobody who serves requests sees it, the worker's process ends by it.
"""


class EngineError(Exception):
    """Root of all errors that the engine raises."""


class RequestRefused(EngineError):
    """The request cannot be served as it is; `field` names the offending part."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class AdapterOverCap(RequestRefused):
    """The adapter alone needs more of the worker's memory than its tenant may hold."""


class EngineOverloaded(EngineError):
    """The waiting queue is full; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineUnreachable(EngineOverloaded):
    """The first token cannot come by the deadline that the request names. `retry_after_s` is None
    where that would clearly be so on an idle machine too."""


class JournalUnavailable(EngineOverloaded):
    """The worker cannot write down what requests use, so it takes none."""


class EngineUnavailable(EngineError):
    """No worker is connected, or the connection broke while the request ran."""


class EngineNotReached(EngineUnavailable):
    """No worker is connected: nothing of the request was sent, so nothing of it ran."""


class RequestFailed(EngineError):
    """One request failed while it ran (say, non-finite logits); `code` is machine readable."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class AdapterUnfit(RequestFailed):
    """The adapter was made for another base model than the one that is served under its name."""


class ModelUnsupported(EngineError):
    """The base model does not pass the structural gate; the message says which check and why."""


class CostModelInvalid(EngineError):
    """A file is no cost model, or one of another version."""


class StartRefused(EngineError):
    """A worker cannot start as it is configured; trying again would not help."""


class MemoryTooSmall(StartRefused):
    """The machine cannot hold what was asked for; the message has the numbers and the remedy."""


class KernelsMissing(StartRefused):
    """Compiled kernels were demanded, and there are none for this machine, device or dtype."""


class TooFewCores(StartRefused):
    """There are fewer cores than processes that are each to be bound to one."""


class AddressInUse(StartRefused):
    """Another worker listens there already."""


class JournalInUse(StartRefused):
    """Another worker keeps its journal in the same folder."""


class StreamAddressInvalid(StartRefused):
    """The address of a worker cannot be used; the message says what would do."""


class EngineCrashed(RuntimeError):
    """The engine's thread ended while it served; the cause is what it ended by. A fresh process may
    do better, so this is no start that was refused."""

    def __init__(self) -> None:
        super().__init__("the engine crashed while it served; its process ends")
