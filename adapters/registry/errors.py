"""Errors of the registry.

RegistryError
├── ModelNotFound       nothing that the tenant may use has the name
├── UploadNotFound      the tenant has no such upload
├── UploadConflict      the upload is past what is asked of it
└── VersionConflict     the same checkpoint was published for another base model
"""


class RegistryError(Exception):
    """Root of all errors of the registry."""


class ModelNotFound(RegistryError):
    """No such model for this tenant: absent, malformed or another tenant's, all told alike."""


class VersionConflict(RegistryError):
    """The adapter has a version of these bytes, made for another base model."""


class UploadNotFound(RegistryError):
    """No such upload for this tenant: absent or another tenant's, told alike."""


class UploadConflict(RegistryError):
    """An upload takes no more bytes, or is being checked, or is over."""
