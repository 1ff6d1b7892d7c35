"""Why no load is made."""


class LoadRefused(Exception):
    """What was asked for cannot or must not be done; the message says why and what helps."""
