"""What operators see of a completion: its metrics and its fields in the access log."""

from collections.abc import Callable

from loraplex.engine.protocol import Finished, Tokens
from loraplex.platform.completions import Admitted
from loraplex.platform.error_replies import describe
from loraplex.platform.log import AccessLine
from loraplex.platform.metrics import GatewayMetrics, outcome_of


class Observation:
    """One completion, from its arrival to its end."""

    def __init__(
        self, metrics: GatewayMetrics, line: AccessLine, clock: Callable[[], float]
    ) -> None:
        """`clock` is the monotonic one that the line's start was taken from."""
        self._clock = clock
        self._metrics = metrics
        self._line = line
        self._num_choices = 1
        self._first_s: float | None = None
        self._error: BaseException | None = None

    def admit(self, admitted: Admitted) -> None:
        """It has passed all checks and is about to run."""
        self._num_choices = admitted.submit.sampling.n
        self._line.fields |= {
            "tenant": admitted.submit.tenant,
            "model": admitted.target.name,
            "stream": admitted.request.stream,
            "service_tier": admitted.submit.service_tier,
            "prompt_tokens": len(admitted.submit.prompt),
        }

    def note(self, event: Tokens | Finished) -> None:
        """The engine delivered something."""
        if self._first_s is None:
            self._first_s = self._clock()
            ttft_s = self._first_s - self._line.started_s
            self._metrics.ttft_s.observe(ttft_s)
            self._line.fields["ttft_ms"] = round(ttft_s * 1000, 3)
        if isinstance(event, Finished):
            num_tokens = event.usage.completion_tokens
            self._line.fields |= {
                "completion_tokens": num_tokens,
                "finish_reason": event.reason,
                "waited_ms": event.waited_ms,
            }
            num_steps = num_tokens / self._num_choices - 1
            if num_steps > 0:
                self._metrics.tpot_s.observe((self._clock() - self._first_s) / num_steps)

    def fail(self, error: BaseException) -> None:
        """It ended with an error, wherever the client was told."""
        self._error = error

    def end(self) -> None:
        """It is over; call once."""
        outcome = outcome_of(200 if self._error is None else describe(self._error).status)
        self._line.fields["outcome"] = outcome
        self._metrics.requests.labels(outcome).inc()
