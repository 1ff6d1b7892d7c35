"""How the machine is shared, by the settings."""

from loraplex.engine.fair_settings import FairSettings
from loraplex.platform.settings import Settings

_DRAIN_QUANTA = 8.0
"""Quanta for which a change of adapters is put off at most while others run on those in memory."""


def fair_settings(settings: Settings) -> FairSettings:
    """Of a worker, and of what is to behave like one."""
    return FairSettings(
        quantum_ms=settings.quantum_ms,
        overdraft_ms=settings.overdraft_ms,
        max_skips=settings.max_skips,
        max_open=settings.max_running,
        max_drain_ms=_DRAIN_QUANTA * settings.quantum_ms,
    )
