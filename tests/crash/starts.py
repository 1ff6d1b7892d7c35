"""What the forge is asked for."""

import msgspec


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is wanted."""

    arguments: tuple[str, ...]
    """Of the command line; of a worker: socket, journal, epoch."""
    log: str
    environment: dict[str, str] = {}
    dies_at: str = ""
    """Name of a point; empty for none."""
    number: int = 1
    """The how manieth time that it comes there."""
