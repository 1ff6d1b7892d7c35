"""Errors of backup and restore; a command tells them in one line.

BackupError
├── BackupInvalid      what lies there is no backup, not all of one, or was changed
├── BackupIncomplete   something left while it was written; repeat it
└── RestoreRefused     it cannot be restored here, and what helps
"""


class BackupError(Exception):
    """Root of all errors of this package; messages say what helps."""


class BackupInvalid(BackupError):
    """What lies there is no backup, not all of one, or was changed."""


class BackupIncomplete(BackupError):
    """No backup could be written."""


class RestoreRefused(BackupError):
    """The backup cannot be restored here."""
