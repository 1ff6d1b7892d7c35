"""When first tokens will come, for requests that would rather be refused than be late."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from loraplex.engine.admission import AdmissionPolicy
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.errors import DeadlineUnreachable
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.outlook import Outlook
from loraplex.engine.request import Request, Submission

_LOAD_RATE = 0.2
_FEW = 64
_IDLE = StepFeatures(0, 0, 0, 0.0, 0.0, 0)


class FirstTokens:
    """Refuses requests whose deadline cannot be met, and notices when that of one that waits cannot
    be any more.

    Its first token comes when its own prompt is computed, and that begins when others' prompts are
    that begin before it, when as many of the others have ended as leave room for it, and when its
    adapter is there. Until step times are learned nothing is predicted: requests are refused when
    their deadline has passed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        policy: AdmissionPolicy,
        costs: StepCosts,
        outlook: Outlook,
    ) -> None:
        self._config = config
        self._pool = pool
        self._policy = policy
        self._costs = costs
        self._outlook = outlook
        self._load_ms_per_byte = 0.0
        """What requests have waited for loads, smoothed."""
        self._latest_starts: list[tuple[float, int, Submission]] = []
        """A heap of those that have a deadline, numbered; some may have started or ended."""
        self._num_watched = 0
        self._most_watched = _FEW

    @property
    def _has_learned(self) -> bool:
        return self._costs.num_steps >= self._config.min_learned_steps

    @property
    def next_s(self) -> float | None:
        """When `overdue` may have something to tell next."""
        return self._latest_starts[0][0] if self._latest_starts else None

    def refuse_late(self, submission: Submission, now: float) -> None:
        """Raise DeadlineUnreachable if a request that has just come, and is not queued yet, has a
        deadline before its first token will come; else keep an eye on it."""
        deadline_ms, request = submission.submit.ttft_deadline_ms, submission.open[0]
        if deadline_ms is None:
            return
        shortest_ms = self._own_ms(request, _IDLE)
        if shortest_ms > deadline_ms:
            raise DeadlineUnreachable(
                f"the first token would come after {shortest_ms:.0f} ms even if nothing else ran; "
                f"its deadline is in {deadline_ms:.0f} ms",
                None,
            )
        first_ms = self._first_token_ms(request)
        if first_ms > deadline_ms:
            raise DeadlineUnreachable(
                f"the first token would come after about {first_ms:.0f} ms; its deadline is in "
                f"{deadline_ms:.0f} ms",
                (first_ms - deadline_ms) / 1e3,
            )
        latest_s = now + (deadline_ms - shortest_ms) / 1e3
        self._watch(submission, latest_s)

    def overdue(self, now: float) -> Iterator[tuple[Submission, DeadlineUnreachable]]:
        """Those that wait and would be late now even if they started at once, and what to tell
        them."""
        while self._latest_starts and self._latest_starts[0][0] < now:
            *_, submission = heappop(self._latest_starts)
            if not _may_be_late(submission):
                continue
            deadline_ms = submission.submit.ttft_deadline_ms or 0.0
            due_s = submission.arrival_s + deadline_ms / 1e3
            latest_s = due_s - self._own_ms(submission.open[0], _IDLE) / 1e3
            if latest_s >= now:
                self._watch(submission, latest_s)  # more of its prompt has been cached since
            else:
                late_ms = self._first_token_ms(submission.open[0]) - deadline_ms
                yield (
                    submission,
                    DeadlineUnreachable(
                        "it waited until its first token could not come by its deadline any more",
                        max(0.0, late_ms) / 1e3,
                    ),
                )

    def started(self, request: Request, now: float) -> None:
        """A request is about to run, and its clock has not stopped yet."""
        num_bytes = request.submission.adapter_bytes
        waited_ms = request.clock.sums_ms(now).get("load", 0.0) if num_bytes else 0.0
        if waited_ms:
            self._load_ms_per_byte += _LOAD_RATE * (waited_ms / num_bytes - self._load_ms_per_byte)

    def _watch(self, submission: Submission, latest_s: float) -> None:
        self._num_watched += 1
        heappush(self._latest_starts, (latest_s, self._num_watched, submission))
        if len(self._latest_starts) > self._most_watched:
            self._latest_starts = [each for each in self._latest_starts if _may_be_late(each[2])]
            heapify(self._latest_starts)
            self._most_watched = max(_FEW, 2 * len(self._latest_starts))

    def _first_token_ms(self, request: Request) -> float:
        """From now on, by prediction; 0 as long as there is none."""
        if not self._has_learned:
            return 0.0
        running = self._outlook.running
        ahead = list(self._policy.ahead(request, self._outlook.rough_ms))
        decodes = [other for other in running if other.num_tokens_to_compute == 1]
        kv_tokens = sum(other.num_computed_tokens for other in decodes)
        beside = StepFeatures(len(decodes), len(decodes), 0, 0.0, 0.0, kv_tokens)
        before = [*running, *ahead]
        prompt_tokens = sum(other.num_tokens_to_compute for other in before) - len(decodes)
        wait_ms = max(
            self._prompt_ms(prompt_tokens, beside),
            self._share_to_end(request, before, len(running))
            * sum(map(self._outlook.rough_ms, before)),
            self._outlook.missing_bytes(request) * self._load_ms_per_byte,
        )
        return wait_ms + self._own_ms(request, beside)

    def _share_to_end(self, request: Request, before: list[Request], num_running: int) -> float:
        """The share of those before it, running or not, that must end until there is a slot for it,
        and KV blocks; 0 if there is room for all."""
        if not before:
            return 0.0
        num_slots = len(before) + 1 - self._config.max_running
        blocks = [self._pool.blocks_for(other.num_tokens) for other in before]
        own_blocks = self._pool.blocks_for(request.num_tokens)
        num_blocks = sum(blocks[num_running:]) + own_blocks - self._outlook.num_free_blocks
        return min(1.0, max(0.0, num_slots / len(before), num_blocks / sum(blocks)))

    def _own_ms(self, request: Request, beside: StepFeatures) -> float:
        """What its own prompt takes, as far as it is not cached."""
        num_tokens = request.num_tokens - self._outlook.cached_tokens(request)
        return self._prompt_ms(num_tokens, beside)

    def _prompt_ms(self, num_tokens: int, beside: StepFeatures) -> float:
        """Time of the steps that compute so many tokens of prompts beside what decodes."""
        if not self._has_learned:
            return 0.0
        at_most = max(1, self._config.max_step_tokens - beside.num_tokens)
        num_full, rest = divmod(num_tokens, at_most)
        full_ms = self._costs.predict_ms(beside.with_chunk(at_most, 0)) if num_full else 0.0
        rest_ms = self._costs.predict_ms(beside.with_chunk(rest, 0)) if rest else 0.0
        return num_full * full_ms + rest_ms


def _may_be_late(submission: Submission) -> bool:
    """True if it has not started, nor ended."""
    return bool(submission.open) and submission.waited_until_s is None
