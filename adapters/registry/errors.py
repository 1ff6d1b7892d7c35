"""Errors of the registry.

RegistryError
├── ModelNotFound       nothing that the tenant may use has the name
└── VersionConflict     the same checkpoint was published for another base model
"""


class RegistryError(Exception):
    """Root of all errors of the registry."""


class ModelNotFound(RegistryError):
    """No such model for this tenant: absent, malformed or another tenant's, all told alike."""


class VersionConflict(RegistryError):
    """The adapter has a version of these bytes, made for another base model."""
