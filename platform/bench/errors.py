"""Why a benchmark is not run, or not to its end."""


class BenchRefused(Exception):
    """What was asked for cannot be measured here; the message says why and what helps."""


class BenchFailed(Exception):
    """Something broke while it was measured; the message says what."""
