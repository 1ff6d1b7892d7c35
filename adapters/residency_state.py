"""Where an adapter is, for those who compute."""

from enum import Enum, auto


class State(Enum):
    """Where an adapter is, as far as the device is concerned."""

    ABSENT = auto()
    LOADING = auto()
    RESIDENT = auto()
