"""What was worked out is remembered, and for a while that it could not be."""

import pytest

from loraplex.adapters.known import Known


class World:
    def __init__(self, max_known: int = 2) -> None:
        self.now_s = 0.0
        self.tries: list[str] = []
        self.known: Known[str] = Known(max_known, 5.0, lambda: self.now_s)

    def ask(self, digest: str) -> str:
        return self.known.of(digest, lambda: self._work_out(digest))

    def _work_out(self, digest: str) -> str:
        self.tries.append(digest)
        if digest == "bad":
            raise OSError("cannot be read")
        return digest.upper()


def test_each_is_worked_out_once_as_long_as_it_is_among_those_asked_for_last() -> None:
    world = World()
    assert [world.ask(digest) for digest in "abab"] == ["A", "B", "A", "B"]
    assert world.tries == ["a", "b"]
    assert world.known.find("a") == "A"
    assert world.ask("c") == "C"
    assert (world.known.find("a"), world.known.find("b")) == ("A", None)


def test_a_failure_is_raised_again_without_a_try_until_its_time_is_over() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(OSError, match="cannot be read"):
            world.ask("bad")
    assert world.known.knows("bad")
    world.now_s = 5.0
    assert not world.known.knows("bad")
    with pytest.raises(OSError, match="cannot be read"):
        world.known.find("bad")
    assert world.tries == ["bad"]
    with pytest.raises(OSError, match="cannot be read"):
        world.ask("bad")
    assert world.tries == ["bad", "bad"]
