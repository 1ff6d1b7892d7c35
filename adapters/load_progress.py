"""How far an adapter's copy to the device has come, told between threads. No torch."""

from collections.abc import Callable
from threading import Condition
from typing import Any


class LoadProgress:
    """Written by the thread that copies; read by any, and waited on."""

    def __init__(
        self,
        pace: Callable[[int], None] = lambda _: None,
        on_usable: Callable[[], None] = lambda: None,
    ) -> None:
        """`pace` is given the bytes of each layer before it is copied, and returns when they may
        be; it may raise, which ends the load. `on_usable` is called when an adapter that may be
        used in part has got its memory, and with each of its layers."""
        self.pace = pace
        self._on_usable = on_usable
        self.of_layers = 0
        """Layers that it has; 0 until that is known."""
        self.early: Any = None
        """An `EarlyAdapter`; None until it may be used, and for ever where it cannot be in part."""
        self._num_layers = 0
        self._is_over = False
        self._changed = Condition()

    @property
    def num_layers(self) -> int:
        """Layers that are on the device, each whole: what steps that begin from now on may read."""
        return self._num_layers

    def open(self, of_layers: int, early: Any) -> None:  # noqa: ANN401  each source has its own
        """Its memory has been taken, and nothing copied yet."""
        with self._changed:
            # In this order: others read both without the lock, and `early` says that it is open.
            self.of_layers = of_layers
            self.early = early
            self._changed.notify_all()
        self._tell()

    def add_layer(self) -> None:
        """One more layer is there."""
        with self._changed:
            self._num_layers += 1
            self._changed.notify_all()
        self._tell()

    def end(self) -> None:
        """No more layers will come, because all have or because the copy failed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for(self, num_layers: int, timeout_s: float) -> bool:
        """Wait until so many layers are there, or none will come; True if they are there."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._num_layers >= num_layers or self._is_over, timeout_s
            )
            return self._num_layers >= num_layers

    def _tell(self) -> None:
        if self.early is not None:
            self._on_usable()
