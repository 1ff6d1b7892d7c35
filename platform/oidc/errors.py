"""Errors of signing in elsewhere; the sign-in page tells them.

OidcError
├── IssuerUnavailable   the issuer cannot be asked now; other ways to sign in go on
└── SignInFailed        this attempt is over; the message says why, and what helps
"""

from loraplex.platform.errors import PlatformError


class OidcError(PlatformError):
    """Root of what goes wrong with an issuer of identities."""


class IssuerUnavailable(OidcError):
    """The issuer does not answer, or not as OpenID Connect says."""


class SignInFailed(OidcError):
    """This attempt to sign in is over."""
