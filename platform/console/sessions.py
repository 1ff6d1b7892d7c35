"""Who is signed in: sessions in this process, each named by a random cookie."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from loraplex.tenants.ids import Entropy

SESSION_S = 12 * 3600.0
IDLE_S = 3600.0
MAX_SESSIONS = 1000
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Notice:
    """What the next page says of the last action."""

    text: str
    key: str | None = None
    """A key that was just made; shown once."""

    def __repr__(self) -> str:
        return f"Notice({self.text!r})"


@dataclass(slots=True)
class Session:
    """One operator at one browser."""

    key_id: str
    label: str
    """Of the admin key, as pages show it."""
    csrf: str
    """What forms of this session carry."""
    ends_s: float
    seen_s: float
    notice: Notice | None = None

    def take_notice(self) -> Notice | None:
        """The notice, once."""
        notice, self.notice = self.notice, None
        return notice


class Sessions:
    """Sessions by the hash of their cookie, so that a copy of the memory's keys opens nothing."""

    def __init__(self, clock: Callable[[], float], entropy: Entropy) -> None:
        """`clock` is in seconds."""
        self._clock = clock
        self._entropy = entropy
        self._sessions: dict[str, Session] = {}

    def open(self, key_id: str, label: str) -> str:
        """Start a session and return its cookie's value."""
        self._drop_what_is_over()
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        cookie, now_s = self._random(), self._clock()
        self._sessions[_hash(cookie)] = Session(
            key_id, label, self._random(), now_s + SESSION_S, now_s
        )
        return cookie

    def find(self, cookie: str | None) -> Session | None:
        """The session of this cookie, unless it is over."""
        session = self._sessions.get(_hash(cookie)) if cookie else None
        now_s = self._clock()
        if session is None or _is_over(session, now_s):
            return None
        session.seen_s = now_s
        return session

    def close(self, cookie: str | None) -> None:
        """End the session of this cookie, if there is one."""
        if cookie:
            self._sessions.pop(_hash(cookie), None)

    def _random(self) -> str:
        return self._entropy(_TOKEN_BYTES).hex()

    def _drop_what_is_over(self) -> None:
        now_s = self._clock()
        for name in [n for n, session in self._sessions.items() if _is_over(session, now_s)]:
            del self._sessions[name]


def _is_over(session: Session, now_s: float) -> bool:
    return now_s >= min(session.ends_s, session.seen_s + IDLE_S)


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
