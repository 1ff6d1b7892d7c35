"""Slows down whoever tries to sign in: a few attempts in a minute, then a pause.

An attempt counts before it is made, so that attempts at once are no more than attempts in a row,
and is taken back once it was right. Others at the same address or account stay counted.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loraplex.tenants.errors import SignInRefused

WINDOW_S = 60.0
MAX_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class Counted:
    """What attempts are counted by, and how many of them there may be in a minute."""

    name: str
    most: int


def counted_by(address: str, account: str) -> tuple[Counted, ...]:
    """How an attempt at an account from an address is counted. `account` is empty for an admin
    key, which names none before it was right.

    Of one account from one address there are few; from one address, which many people may share,
    more; of one account from everywhere most of all, since whoever tries it so would otherwise keep
    its owner out from one machine.
    """
    pair = Counted(f"{account or 'admin key'} from {address}", 5)
    here = Counted(f"address {address}", 20)
    return (pair, here, Counted(f"account {account}", 50)) if account else (pair, here)


class TooManyAttempts(Exception):
    """One has to wait for `wait_s` before the next attempt."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"Too many attempts. Try again in {wait_s:.0f} s.")
        self.wait_s = wait_s


class SignInThrottle:
    """Attempts of the last minute that were not right, by what they are counted by."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is in seconds."""
        self._clock = clock
        self._attempts: OrderedDict[str, deque[float]] = OrderedDict()

    @contextmanager
    def attempt(self, counted: Sequence[Counted]) -> Iterator[None]:
        """Make an attempt inside; it counts if SignInRefused leaves, or if it is broken off.

        Raises:
            TooManyAttempts: nothing was tried.
        """
        at = self.count(counted)
        try:
            yield
        except SignInRefused:
            raise
        except Exception:
            self._take_back(counted, at)
            raise
        self._take_back(counted, at)

    def count(self, counted: Sequence[Counted]) -> float:
        """Count an attempt, and return when that was. Raises TooManyAttempts."""
        now = self._clock()
        wait_s = max(self._wait_s(one, now) for one in counted)
        if wait_s > 0:
            raise TooManyAttempts(wait_s)
        for one in counted:
            self._attempts.setdefault(one.name, deque()).append(now)
            self._attempts.move_to_end(one.name)
        while len(self._attempts) > MAX_NAMES:
            self._attempts.popitem(last=False)
        return now

    def _wait_s(self, one: Counted, now: float) -> float:
        attempts = self._attempts.get(one.name, deque())
        while attempts and attempts[0] + WINDOW_S <= now:
            attempts.popleft()
        return attempts[-one.most] + WINDOW_S - now if len(attempts) >= one.most else 0.0

    def _take_back(self, counted: Sequence[Counted], at: float) -> None:
        for one in counted:
            attempts = self._attempts.get(one.name)
            if attempts is not None and at in attempts:
                attempts.remove(at)
