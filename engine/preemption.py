"""KV blocks for the next tokens of those that decode, and who gives up theirs for them."""

from collections.abc import Callable

from loraplex.engine.admission import WAITS_FOR_COPIES, AdmissionPolicy, Blocked
from loraplex.engine.border import Border
from loraplex.engine.decode_rows import DecodeRows
from loraplex.engine.draft import Draft
from loraplex.engine.outlook import Outlook
from loraplex.engine.plan import Preempted
from loraplex.engine.request import Request, Status
from loraplex.engine.request_blocks import RequestBlocks

_NOT_FOR_ROOM = frozenset({None, *WAITS_FOR_COPIES})


class Preemption:
    """When blocks run out, the request admitted last gives up its own: one that yields, if there is
    any; or, where the policy does not let the one in need push it out, that one itself.

    What it has computed is copied to the host and back, or computed again, whichever is predicted
    to take less of the machine.
    """

    def __init__(
        self,
        blocks: RequestBlocks,
        decoding: DecodeRows,
        outlook: Outlook,
        policy: AdmissionPolicy,
        give_up: Callable[[Request], None],
        border: Border,
    ) -> None:
        """`give_up` takes a running choice's blocks and lets it wait."""
        self._blocks = blocks
        self._pool = blocks.pool
        self._decoding = decoding
        self._outlook = outlook
        self._swapping = blocks.swapping
        self._policy = policy
        self._give_up = give_up
        self._border = border

    def make_room(self, lacking: list[Request], running: list[Request], draft: Draft) -> None:
        """Give each of those that decode the block which its next token needs, as far as they are
        not preempted; `running` are all that may be, in order of admission, those that yield last.
        """
        if len(lacking) > self._pool.num_free:
            self._border.take_back(len(lacking) - self._pool.num_free, draft)
        if len(lacking) <= self._pool.num_free:
            self._extend(lacking)
            return
        running = list(running)
        for request in lacking:
            if request.status is Status.RUNNING and self._makes_room(request, running, draft):
                self._extend([request])

    def refusal(
        self,
        request: Request,
        shared: list[int],
        running: list[Request],
        yielding: list[Request],
        draft: Draft,
    ) -> Blocked | None:
        """Why a waiting request cannot start now, which would take over the blocks `shared`. What
        yields gives way before that is said of another; `running` and `yielding` are all that
        run."""

        def missing() -> Blocked | None:
            return self._outlook.missing(request, shared, len(running) + len(yielding))

        # Who lacks a block at most takes hold of the others now, before they are gone.
        lacks_more = not shared or self._pool.missing(shared, request.num_tokens) > 1
        if draft.budget == 0 and (lacks_more or request.host_copy is not None):
            return Blocked.STEP
        refusal = missing()
        may_take = not self._policy.yields(request)
        if may_take and self._border.moves_for(request, refusal, draft):
            refusal = missing()
        while refusal not in _NOT_FOR_ROOM and may_take and yielding:
            self.preempt(yielding[-1], request, draft)
            refusal = missing()
        return refusal

    def preempt(self, request: Request, by: Request, draft: Draft) -> None:
        """Take a running choice's blocks for another, or for itself if it was not allowed more."""
        cost_ms, is_swapped = self._cost(request)
        if is_swapped:
            self._swapping.copy_out(request, draft)
        draft.preempted.append(Preempted(request.key, by.key, cost_ms, is_swapped))
        self._give_up(request)

    def _makes_room(self, request: Request, running: list[Request], draft: Draft) -> bool:
        """True if there is a block for its next token; False if it was preempted itself."""
        while not self._pool.num_free:
            victim = running[-1]
            cost_ms, _ = self._cost(victim)
            if victim is not request and not self._policy.makes_room(request, victim, cost_ms):
                victim = request
            running.remove(victim)
            self.preempt(victim, request, draft)
            if victim is request:
                return False
        return True

    def _cost(self, request: Request) -> tuple[float, bool]:
        """What preempting it costs, in ms, and whether it is to be copied."""
        recompute_ms = self._outlook.recompute_ms(request)
        copy_ms = self._swapping.round_trip_ms(request)
        if copy_ms is None or copy_ms >= recompute_ms:
            return recompute_ms, False
        return copy_ms, True

    def _extend(self, requests: list[Request]) -> None:
        for request in requests:
            if self._blocks.enter(request):
                self._decoding.replaced(request)
        if requests:
            self._decoding.grow(requests, self._pool)
