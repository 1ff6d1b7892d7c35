"""Errors of the console, which are answered with pages.

ConsoleError
├── SignInNeeded     nobody is signed in; the answer is the way to the sign-in page
├── CrossSite        a form came from another site, or without its token
└── FormRefused      a form cannot be read
"""

from loraplex.platform.errors import PlatformError


class ConsoleError(PlatformError):
    """Root of the console's errors."""


class SignInNeeded(ConsoleError):
    """The request has no session, or one that is over."""


class CrossSite(ConsoleError):
    """The form was not sent by a page of this session."""

    def __init__(self) -> None:
        super().__init__(
            "The form was not sent from this console, or its page is too old. "
            "Open the page again and send it once more."
        )


class FormRefused(ConsoleError):
    """The form cannot be read."""
