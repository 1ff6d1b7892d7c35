"""When first tokens will come, for requests that would rather be refused than be late."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil

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
_PROBE_EVERY = 8
_CLEARLY = 2.0
"""How much longer than a deadline a prompt must take to be refused for good: predictions err."""
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
        self._running: _Running | None = None
        """As it was when it was looked at since the last step was planned."""
        self._latest_starts: list[tuple[float, int, Submission]] = []
        """A heap of those that have a deadline, numbered; some may have started or ended."""
        self._num_watched = 0
        self._num_late_when_idle = 0
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
        deadline before its first token will come, and is no probe; else keep an eye on it."""
        deadline_ms, request = submission.submit.ttft_deadline_ms, submission.open[0]
        if deadline_ms is None:
            return
        shortest_ms = self._own_ms(request, _IDLE)
        first_ms = max(shortest_ms, self._first_token_ms(request))
        if first_ms <= deadline_ms:
            self._watch(submission, now + (deadline_ms - shortest_ms) / 1e3)
        elif not self._is_probe():
            asked_ms = deadline_ms + submission.submit.ttft_spent_ms
            self._refuse_for_good(request, shortest_ms, asked_ms)
            raise DeadlineUnreachable(
                f"the first token would come after about {first_ms:.0f} ms; its deadline is in "
                f"{deadline_ms:.0f} ms",
                (first_ms - deadline_ms) / 1e3,
            )

    def overdue(self, now: float) -> Iterator[tuple[Submission, DeadlineUnreachable]]:
        """Those that wait and would be late now even if they started at once, and what to tell
        them: when one that comes now would get its first token. Asked before each step.
        """
        first_ms: float | None = None
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
                if first_ms is None:  # the same for all, since many may be late at once
                    first_ms = self._first_token_ms(submission.open[0])
                late_ms = first_ms - deadline_ms
                yield (
                    submission,
                    DeadlineUnreachable(
                        "the request waited until its first token could not come by its "
                        "deadline any more",
                        max(0.0, late_ms) / 1e3,
                    ),
                )
        self._running = None

    def started(self, request: Request, now: float) -> None:
        """A request is about to run, and its clock has not stopped yet."""
        num_bytes = request.submission.adapter_bytes
        waited_ms = request.clock.sums_ms(now).get("load", 0.0) if num_bytes else 0.0
        if waited_ms:
            self._load_ms_per_byte += _LOAD_RATE * (waited_ms / num_bytes - self._load_ms_per_byte)

    def _is_probe(self) -> bool:
        """True if one that is predicted to be late runs all the same, unwatched, on an idle engine.

        Predictions are corrected by steps alone. Were all traffic to have deadlines, and the
        predictions too slow for them, no step would run and all would be refused for ever.
        """
        if self._outlook.running or len(self._policy):
            return False
        self._num_late_when_idle += 1
        return self._num_late_when_idle % _PROBE_EVERY == 0

    def _refuse_for_good(self, request: Request, shortest_ms: float, asked_ms: float) -> None:
        """Refuse what clearly could not be in time on an idle machine either, if it came again;
        unless it would find then what another computes now."""
        if shortest_ms <= _CLEARLY * asked_ms:
            return
        num_tokens = request.num_tokens - self._soon_cached_tokens(request)
        if self._prompt_ms(num_tokens, _IDLE) > _CLEARLY * asked_ms:
            raise DeadlineUnreachable(
                f"the first token would come after {shortest_ms:.0f} ms even if nothing else ran; "
                f"its deadline is after {asked_ms:.0f} ms",
                None,
            )

    def _soon_cached_tokens(self, request: Request) -> int:
        """Tokens of it that are cached, or will be when prompts are computed that have begun."""
        num_tokens = self._outlook.cached_tokens(request)
        size, namespace = self._pool.block_size, request.submission.namespace
        for other in self._outlook.running if self._config.prefix_cache else ():
            if other.num_tokens_to_compute > 1 and other.submission.namespace == namespace:
                num_tokens = max(num_tokens, _common_tokens(request, other, size))
        return num_tokens

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
        if self._running is None:
            self._running = _Running.of(self._outlook)
        running, ahead = self._running, self._ahead(request)
        wait_ms = max(
            self._prompt_ms(running.prompt_tokens + ahead.prompt_tokens, running.decodes),
            self._share_to_end(request, running, ahead) * (running.cost_ms + ahead.cost_ms),
            self._outlook.missing_bytes(request) * self._load_ms_per_byte,
        )
        return wait_ms + self._own_ms(request, running.decodes)

    def _ahead(self, request: Request) -> "_Work":
        """What those ask for that wait and will likely begin before it."""
        known: dict[str, _Work] = {}

        def work_of(other: Request) -> _Work:
            if other.key not in known:
                known[other.key] = self._work(other)
            return known[other.key]

        counted = self._policy.ahead(request, lambda other: work_of(other).cost_ms)
        return _Work.total((work_of(other), count) for other, count in counted)

    def _work(self, request: Request) -> "_Work":
        """What one that waits asks for. The first choice of a prompt computes it for the others."""
        size = self._pool.block_size
        num_known, num_shared = (
            self._outlook.cached_tokens(request),
            len(self._outlook.shared(request)),
        )
        if request is not request.submission.open[0]:
            num_shared = max(num_shared, (request.num_prompt_tokens - 1) // size)
            num_known = max(num_known, num_shared * size)
        return _Work(
            num_requests=1,
            prompt_tokens=request.num_tokens - num_known,
            cost_ms=self._outlook.rough_ms(request, num_known),
            num_blocks=self._pool.blocks_for(request.num_tokens) - num_shared,
        )

    def _share_to_end(self, request: Request, running: "_Running", ahead: "_Work") -> float:
        """The share of those before it, running or not, that must end until there is a slot for it,
        and KV blocks; 0 if there is room for all."""
        num_before = running.num_requests + ahead.num_requests
        if not num_before:
            return 0.0
        num_free = self._outlook.num_free_blocks
        held = self._pool.num_blocks - num_free + ahead.num_blocks
        own_blocks = self._pool.blocks_for(request.num_tokens) - len(self._outlook.shared(request))
        num_blocks = ahead.num_blocks + own_blocks - num_free
        num_slots = num_before + 1 - self._config.max_running
        return min(1.0, max(0.0, num_slots / num_before, num_blocks / held if held else 0.0))

    def _own_ms(self, request: Request, beside: StepFeatures) -> float:
        """What its own prompt takes, as far as it is not cached."""
        num_tokens = request.num_tokens - self._outlook.cached_tokens(request)
        return self._prompt_ms(num_tokens, beside)

    def _prompt_ms(self, num_tokens: float, beside: StepFeatures) -> float:
        """Time of the steps that compute so many tokens of prompts beside what decodes."""
        if not self._has_learned:
            return 0.0
        at_most = max(1, self._config.max_step_tokens - beside.num_tokens)
        num_full, rest = divmod(ceil(num_tokens), at_most)
        full_ms = self._costs.predict_ms(beside.with_chunk(at_most, 0)) if num_full else 0.0
        rest_ms = self._costs.predict_ms(beside.with_chunk(rest, 0)) if rest else 0.0
        return num_full * full_ms + rest_ms


@dataclass(frozen=True, slots=True)
class _Running:
    """What those that run still take."""

    num_requests: int
    prompt_tokens: int
    cost_ms: float
    decodes: StepFeatures
    """Of a step that computes no prompt."""

    @classmethod
    def of(cls, outlook: Outlook) -> "_Running":
        """All of them; O(running)."""
        running = outlook.running
        decodes = [other for other in running if other.num_tokens_to_compute == 1]
        kv_tokens = sum(other.num_computed_tokens for other in decodes)
        return cls(
            num_requests=len(running),
            prompt_tokens=sum(other.num_tokens_to_compute for other in running) - len(decodes),
            cost_ms=sum(outlook.rough_ms(other, other.num_computed_tokens) for other in running),
            decodes=StepFeatures(len(decodes), len(decodes), 0, 0.0, 0.0, kv_tokens),
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """What some that wait ask for."""

    num_requests: float
    prompt_tokens: float
    cost_ms: float
    num_blocks: float
    """KV blocks beside those that they find."""

    @classmethod
    def total(cls, counted: Iterable[tuple["_Work", float]]) -> "_Work":
        """Each so many times."""
        num_requests = prompt_tokens = cost_ms = num_blocks = 0.0
        for work, count in counted:
            num_requests += count * work.num_requests
            prompt_tokens += count * work.prompt_tokens
            cost_ms += count * work.cost_ms
            num_blocks += count * work.num_blocks
        return cls(num_requests, prompt_tokens, cost_ms, num_blocks)


def _common_tokens(request: Request, other: Request, size: int) -> int:
    """Tokens of the whole blocks of `size` with which both begin, without the last of `request`."""
    ids, others = request.token_ids, other.token_ids
    longest = min(len(ids) - 1, len(others)) // size * size
    for start in range(0, longest, size):
        if ids[start : start + size] != others[start : start + size]:
            return start
    return longest


def _may_be_late(submission: Submission) -> bool:
    """True if it has not started, nor ended."""
    return bool(submission.open) and submission.waited_until_s is None
