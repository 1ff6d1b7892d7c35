"""How far a copy has come, as other threads see it."""

from loraplex.adapters.load_progress import LoadProgress


class Watched(LoadProgress):
    """Looks at itself whenever anything of it changes, as a thread may that takes no lock."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if getattr(self, "early", None) is not None:
            assert self.of_layers > 0, "it is open, and of no layers"


def test_what_is_open_has_its_number_of_layers_at_any_moment() -> None:
    progress = Watched()
    progress.open(3, early=object())
    assert progress.of_layers == 3
