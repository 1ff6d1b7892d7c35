"""What became of one request: times and counts, never its text."""

from dataclasses import dataclass

OK = "ok"
CANNOT_CONNECT = "cannot_connect"
BROKEN = "broken_stream"
"""The connection ended, or the stream did without its end."""
ERROR_EVENT = "error_in_stream"
UNFINISHED = "unfinished"
"""Still running when the time of the run was over."""
NOT_SENT_CONCURRENCY = "not_sent_max_concurrency"
NOT_SENT_TIME = "not_sent_max_seconds"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times are in seconds since the start of the run; None is what never came."""

    model: str
    scheduled_s: float
    status: str
    """`ok`, an HTTP status, or one of the words above."""
    sent_s: float | None = None
    first_s: float | None = None
    """First event with text."""
    last_s: float | None = None
    """Last event with text."""
    end_s: float | None = None
    prompt_tokens: int = 0
    """As the server counted; so below."""
    completion_tokens: int = 0
    detail: str = ""
    """The beginning of what the server said of an error."""

    @property
    def lag_ms(self) -> float | None:
        """How late the generator sent it."""
        return None if self.sent_s is None else (self.sent_s - self.scheduled_s) * 1e3

    @property
    def ttft_ms(self) -> float | None:
        """From sending to the first text."""
        return _ms(self.sent_s, self.first_s)

    @property
    def e2e_ms(self) -> float | None:
        """From sending to the end of the answer."""
        return _ms(self.sent_s, self.end_s)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of an output token after the first; None for answers of one."""
        between_ms = _ms(self.first_s, self.last_s)
        if between_ms is None or self.completion_tokens < 2:
            return None
        return between_ms / (self.completion_tokens - 1)


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else (end_s - start_s) * 1e3
