"""Errors of the registry.

RegistryError
├── ModelNotFound       nothing that the tenant may use has the name
├── UploadNotFound      the tenant has no such upload
├── UploadConflict      the upload is past what is asked of it
├── VersionConflict     the same checkpoint was published for another base model
├── VersionInUse        an alias means the version, so it cannot go
├── VersionNotReady     the version is retired or being deleted, and what is asked needs a ready one
├── AliasMoved          the alias means another version than the caller expects
├── NothingToMoveTo     a rollback without a version before, a promotion without a canary
├── TooManyAliases      the adapter has as many as it may
├── AdapterTooLarge     its rank, modules or memory exceed the tenant's limits
├── StorageLimitReached the tenant's adapters take all the room that they may
└── PinLimitReached     the tenant's pins do
"""


class RegistryError(Exception):
    """Root of all errors of the registry."""


class ModelNotFound(RegistryError):
    """No such model for this tenant: absent, malformed or another tenant's, all told alike."""

    def __init__(self, message: str, model: str = "") -> None:
        super().__init__(message)
        self.model = model
        """What was asked for."""


class VersionConflict(RegistryError):
    """The adapter has a version of these bytes, made for another base model."""


class UploadNotFound(RegistryError):
    """No such upload for this tenant: absent or another tenant's, told alike."""


class UploadConflict(RegistryError):
    """An upload takes no more bytes, or is being checked, or is over."""


class VersionInUse(RegistryError):
    """Aliases mean the version, or send it requests as a canary; the message names them."""


class VersionNotReady(RegistryError):
    """The version cannot be called; the message says why and what helps."""


class AliasMoved(RegistryError):
    """The alias does not mean what the caller expects; the message has what it means."""


class NothingToMoveTo(RegistryError):
    """The alias has no version before, or no canary."""


class TooManyAliases(RegistryError):
    """One more alias than an adapter may have."""


class AdapterTooLarge(RegistryError):
    """The adapter's rank, number of modules or memory exceeds a limit of the tenant."""


class StorageLimitReached(RegistryError):
    """With this adapter the tenant's would take more of the store than they may."""


class BytesLeaving(RegistryError):
    """The bytes of an adapter are being removed, or may have been; another attempt may go well."""


class PinLimitReached(RegistryError):
    """With this version the tenant's pins would take more memory than they may."""
