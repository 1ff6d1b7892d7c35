"""Errors that the gateway raises itself.

PlatformError
├── InvalidRequest          a field is wrong; `param` names it
├── ContextLengthExceeded   prompt and output do not fit into the model's context
├── KeyMissing              no bearer key came with the request
├── AdminKeyNeeded          a tenant's key came where only an operator's opens
├── BodyTooLarge, BodyTimeout
├── ClientGone              the client left; nobody reads an answer
├── ClientStalled           the client stopped to read its stream
├── PriceMissing            a budget of money cannot hold, since no price does
├── LedgerUnavailable       usage cannot be written, so nothing that would be charged may run
├── TooManyUploads          as many uploads run as may
├── TooManyHints            a tenant has as many open hints as it may
├── UploadOffsetMismatch    bytes of an upload do not follow those that are there
├── SourceUnavailable       where adapters are imported from does not answer
├── StorageUnavailable      the gateway's disk does not take an upload
├── AdapterDeleted          the version that the request ran on was deleted by force
├── EngineStopped           the worker ended the request before it was complete
└── TokenizerUnsupported    user text could not be told from the model's special tokens
"""

from loraplex.tenants.scoped_limits import ScopedLimit


class PlatformError(Exception):
    """Root of all errors that the gateway raises itself; messages never hold keys or prompts."""


class InvalidRequest(PlatformError):
    """The request cannot be served as it is; `param` is the path of the offending field."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthExceeded(PlatformError):
    """Prompt plus output exceed the model's context; the message has the numbers."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class KeyMissing(PlatformError):
    """The request has no `Authorization: Bearer` header."""

    def __init__(self) -> None:
        super().__init__("No API key was sent; send it as the header 'Authorization: Bearer KEY'.")


class AdminKeyNeeded(PlatformError):
    """A tenant's key came to a route of the operator's."""

    def __init__(self) -> None:
        super().__init__("This route needs an admin key (lpxadm_…), not a tenant's key.")


class ModelNotAllowed(PlatformError):
    """The tenant has the model, and the key or its project may not call it."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The API key may not call {model}; GET /v1/models lists what it may call."
        )
        self.param = "model"


class RequestNotFound(PlatformError):
    """An operator asked for a request that is neither open nor among those that ended lately."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"No request {request_id!r} is open here or among the last that ended; the ledger has "
            "those before."
        )


class BodyTooLarge(PlatformError):
    """The body is larger than the gateway takes, or than `message` says."""

    def __init__(self, max_bytes: int, message: str | None = None) -> None:
        super().__init__(
            message or f"The request body is larger than {max_bytes} bytes; send less."
        )


class BodyTimeout(PlatformError):
    """The body did not arrive in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request body did not arrive within {timeout_s:g} s; send it again.")


class ClientGone(PlatformError):
    """The client closed its connection before the answer was complete."""

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


class ClientStalled(PlatformError):
    """The client has not read its stream for so long that its request was ended."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(f"The client did not read its stream for {pause_s:g} s.")


class PriceMissing(PlatformError):
    """A budget of money bounds the request, and it would cost nothing (litellm#30081)."""

    def __init__(self, limit: ScopedLimit) -> None:
        super().__init__(
            f"{limit.told} cannot be checked, since no price holds now. The operator sets one with "
            "`loraplex price set`, or removes the limit."
        )


class LedgerUnavailable(PlatformError):
    """Usage waits to be written; what would add to it is not admitted."""

    def __init__(self) -> None:
        super().__init__("The usage ledger cannot be written.")


class StorageUnavailable(PlatformError):
    """The gateway's disk is full or refuses to be written; the message is the system's reason."""


class TooManyUploads(PlatformError):
    """Another upload may start when one has ended; the message says whose."""

    retry_after_s = 5.0


class TooManyHints(PlatformError):
    """Another adapter may be warmed when a hint has ended, in `retry_after_s`."""

    def __init__(self, max_hints: int, retry_after_s: float) -> None:
        super().__init__(
            f"{max_hints} hints of yours are open, as many as may be; the next ends in "
            f"{retry_after_s:.0f} s."
        )
        self.retry_after_s = retry_after_s


class UploadOffsetMismatch(PlatformError):
    """The bytes sent do not begin where the file ends; `offset` is where, as a header tells too."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} The file has {offset} bytes.")
        self.offset = offset


class SourceUnavailable(PlatformError):
    """A source of adapters cannot be read; the message has its reason."""


class AdapterDeleted(PlatformError):
    """The version that the request ran on was deleted by force, with its requests."""

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} was deleted by force while the request ran on it.")


class EngineStopped(PlatformError):
    """The worker ended the request early, because it is being stopped."""

    def __init__(self) -> None:
        super().__init__("The worker was stopped before the answer was complete; try again.")


class TokenizerUnsupported(PlatformError):
    """The model's special tokens cannot be told from text that a user typed."""
