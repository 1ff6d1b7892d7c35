"""Errors of the simulator: what it was asked to read or run is not usable."""


class SimulationError(Exception):
    """Root; messages name the file or option, the value, and what helps."""


class TraceInvalid(SimulationError):
    """A trace cannot be read."""


class ProfileInvalid(SimulationError):
    """A device profile cannot be read, or there is none of that name."""
