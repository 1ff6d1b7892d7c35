"""Choices that decode, as arrays that live from step to step: only what changes is written.

The idea of a batch that persists is vLLM's (https://docs.vllm.ai/en/latest/design/arch_overview.html):
from one step to the next most choices advance by one token, and nothing else about them changes. A
choice has a row from its first sampled token until it ends or loses its KV blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import SchedulerConfig, Targets
from loraplex.engine.cost_features import Floats
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.plan import SAMPLING, Decodes, Roster, no_decodes
from loraplex.engine.request import Request

Ints = NDArray[np.int64]
_NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Those that decode in a step, in the order of the plan. The same object as long as they
    are the same."""

    rows: NDArray[np.intp]
    """[n]: where they are among `DecodeRows`."""
    tickets: Ints
    """[n]: whether they are still there."""
    requests: Sequence[Request]
    roster: Roster
    lengths: NDArray[np.intp]
    """[runs]: rows of each of the roster's adapters."""
    groups: NDArray[np.intp]
    """[runs]: numbers of these adapters, rising; 0 is the base model's."""
    rank_parts: Floats
    """[n]: each row's part of what its adapter adds to a step; 0 for the base model."""
    sum_rank: float
    num_adapters: int
    """Without the base model."""
    specs: Sequence[int]
    """Rows, from 0 to n, that ask for more than `roster.sampling` says."""

    def __len__(self) -> int:
        return len(self.rows)


class DecodeRows:
    """The rows of one scheduler. What it hands out is copied: no later step writes to it.

    Rows may leave at any time; they join only after a step. Invariant: a choice has a row if and
    only if it runs and all its tokens but the newest are in the KV cache.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        size = config.max_running
        self._block_size = config.block_size
        self._targets = config.targets
        self._free = list(range(size - 1, -1, -1))
        self._requests: NDArray[Any] = np.full(size, None, object)
        self._keys: NDArray[Any] = np.full(size, None, object)
        self._adapters: NDArray[Any] = np.full(size, None, object)
        self._tickets = np.full(size, -1, np.int64)
        """Another number for each choice that ever joined, rising; -1 where there is none."""
        self._groups = np.zeros(size, np.min_scalar_type(size))
        self._group_of: dict[AdapterKey, int] = {}
        self._free_groups = list(range(size, 0, -1))
        self._group_sizes = np.zeros(size + 1, np.int64)
        """Adapters of rows have numbers from 1, as small as can be: 16 bits sort fastest."""
        self._yields = np.zeros(size, np.bool_)
        self._is_held = np.zeros(size, np.bool_)
        """Whose adapter is not there yet."""
        self._has_spec = np.zeros(size, np.bool_)
        self._num_prompt_tokens = np.zeros(size, np.int64)
        self._sampling = np.zeros(size, SAMPLING)
        self._ranks = np.zeros(size)
        self._due_s = np.zeros(size)
        self._pace_ms = np.zeros(size)
        self._admissions = np.zeros(size, np.int64)
        self._token_ids = np.zeros(size, np.int64)
        self._positions = np.zeros(size, np.int64)
        self._last_positions = np.zeros(size, np.int64)
        """Of the last token but one that it may have."""
        self._room = np.zeros(size, np.int64)
        """Positions that its blocks hold."""
        self._block_tables = np.full((size, 1), -1, np.int32)
        """As wide as the longest table so far."""
        self._ends = np.zeros(config.vocab_size, np.int64)
        """[vocab]: how many rows each token ends. Tokens beyond are adapters' own; they are looked
        at one by one."""
        self._num_joined = 0
        self._selections: dict[bool | None, Selection] = {}
        """Since the last change: of those that do not yield, of those that do, of both."""
        self.nobody = self._selection(np.zeros(0, np.intp))
        """An empty selection."""
        self._no_decodes = no_decodes()

    @property
    def num_rows(self) -> int:
        """Choices that have one."""
        return len(self._tickets) - len(self._free)

    def load(self) -> tuple[int, int]:
        """Of those that are not held: how many they are, and how many tokens in the KV cache they
        read in each step, together."""
        goes_on = (self._tickets >= 0) & ~self._is_held
        return int(np.count_nonzero(goes_on)), int(self._positions[goes_on].sum())

    def join(self, request: Request, *, yields: bool, is_held: bool = False) -> None:
        """Take a running choice whose newest token alone is not in the KV cache. One that is held
        is not selected until it goes on."""
        row = request.row = self._free.pop()
        submission, sampling = request.submission, request.submission.sampling
        self._requests[row], self._keys[row] = request, request.key
        self._adapters[row] = request.adapter
        self._tickets[row] = self._num_joined
        self._num_joined += 1
        self._groups[row] = self._join_group(request.adapter)
        self._yields[row] = yields
        self._is_held[row] = is_held
        self._has_spec[row] = request.needs_spec
        self._num_prompt_tokens[row] = request.num_prompt_tokens
        self._sampling[row] = request.sampling_row
        self._ranks[row] = submission.rank
        self._due_s[row] = submission.first_token_due_s
        self._pace_ms[row] = self._targets.get(submission.submit.service_tier, _NO_TARGETS).tpot_ms
        self._admissions[row] = request.admission
        self._token_ids[row] = request.token_ids[-1]
        self._positions[row] = request.num_tokens - 1
        self._last_positions[row] = request.num_prompt_tokens + sampling.max_tokens - 2
        num_blocks = len(request.block_table)
        self._widen(num_blocks)
        self._block_tables[row, :num_blocks] = request.block_table
        self._room[row] = num_blocks * self._block_size
        self._ends[self._end_ids(request)] += 1
        self._selections.clear()

    def go_on(self, request: Request) -> None:
        """It is held no more."""
        self._is_held[request.row] = False
        self._selections.clear()

    def leave(self, request: Request) -> None:
        """Forget a choice that ends, or loses its blocks."""
        row, request.row = request.row, -1
        self._leave_group(request.adapter)
        self._requests[row] = self._keys[row] = self._adapters[row] = None
        self._tickets[row] = -1
        self._block_tables[row, : self._room[row] // self._block_size] = -1
        self._ends[self._end_ids(request)] -= 1
        self._free.append(row)
        self._selections.clear()

    def without_room(self, at_most: int, *, yielding: bool) -> list[Request]:
        """Of those that `select` would return, the ones whose newest token needs another block, in
        order of admission."""
        rows = self.select(at_most, yielding=yielding).rows
        rows = rows[self._positions[rows] >= self._room[rows]]
        by_admission = rows[self._admissions[rows].argsort()]
        requests: list[Request] = self._requests[by_admission].tolist()
        return requests

    def grow(self, requests: Sequence[Request], pool: BlockPool) -> None:
        """Give each another block; there must be as many."""
        blocks = pool.grow([request.block_table for request in requests])
        rows = [request.row for request in requests]
        room = self._room[rows]
        columns = room // self._block_size
        self._widen(int(columns.max()) + 1)
        self._block_tables[rows, columns] = blocks
        self._room[rows] = room + self._block_size

    def replaced(self, request: Request) -> None:
        """Its block table has other blocks."""
        self._block_tables[request.row, : len(request.block_table)] = request.block_table

    def select(self, at_most: int, *, yielding: bool) -> Selection:
        """Those that yield to all others, or those others: of too many the first admitted."""
        found = self._selections.get(yielding)
        if found is None:
            is_there = (self._tickets >= 0) & (self._yields == yielding) & ~self._is_held
            found = self._selections[yielding] = self._selection(is_there.nonzero()[0])
        if len(found) <= at_most:
            return found
        by_admission = found.rows[self._admissions[found.rows].argsort()]
        return self._selection(by_admission[:at_most])

    def both(self, first: Selection, second: Selection) -> Selection:
        """The two together."""
        if not (len(first) and len(second)):
            return first if len(first) else second
        found = self._selections.get(None)
        num_rows = len(first) + len(second)
        if found is None or len(found) != num_rows:
            found = self._selection(np.concatenate((first.rows, second.rows)))
            if num_rows == self.num_rows:
                self._selections[None] = found
        return found

    def decodes(self, selection: Selection) -> Decodes:
        """The newest tokens of the selected, as they are now."""
        if not len(selection):
            return self._no_decodes
        rows = selection.rows
        return Decodes(
            roster=selection.roster,
            token_ids=_read_only(self._token_ids[rows]),
            positions=_read_only(self._positions[rows]),
            block_tables=_read_only(self._block_tables.take(rows, axis=0)),
            specs={row: selection.requests[row].sample_spec() for row in selection.specs},
        )

    def slack_ms(self, selection: Selection, now: float) -> float:
        """How long a step may take until the first of the selected is late; infinite without
        targets.

        A request that is late already may ask for its pace and no more: were steps as short as
        could be, prompts would hardly advance, and all would be later still.
        """
        rows = selection.rows
        num_output_tokens = self._positions[rows] + 1 - selection.roster.num_prompt_tokens
        pace_ms = self._pace_ms[rows]
        left_ms = (self._due_s[rows] - now) * 1e3 + num_output_tokens * pace_ms
        return float(np.maximum(left_ms, pace_ms).min(initial=np.inf))

    def advance(self, selection: Selection, token_ids: Ints) -> NDArray[np.bool_]:
        """Each of the selected has got its next token. Return which of them, [n], may be ended by
        it, or ask for more than plain tokens; or are not there any more."""
        rows = selection.rows
        positions = self._positions[rows]
        marked: NDArray[np.bool_] = self._ends.take(token_ids, mode="clip") > 0
        marked |= token_ids >= len(self._ends)
        marked |= positions >= self._last_positions[rows]
        marked |= self._has_spec[rows]
        is_there = self._tickets[rows] == selection.tickets
        if not is_there.all():
            marked |= ~is_there
            rows, token_ids, positions = rows[is_there], token_ids[is_there], positions[is_there]
        self._token_ids[rows] = token_ids
        self._positions[rows] = positions + 1
        return marked

    def check(self, requests: Sequence[Request]) -> None:
        """Assert that the rows are these choices', and say of each what it says itself."""
        rows = np.flatnonzero(self._tickets >= 0)
        assert set(self._requests[rows]) == set(requests), "a choice has a row and does not decode"
        assert len(rows) + len(self._free) == len(self._tickets), "a row is lost"
        for row, request in zip(rows.tolist(), self._requests[rows], strict=True):
            table = self._block_tables[row]
            assert request.row == row
            assert request.token_ids[-1] == self._token_ids[row]
            assert request.num_tokens - 1 == self._positions[row] == request.num_computed_tokens
            assert request.block_table == table[table >= 0].tolist()
            assert self._room[row] == len(request.block_table) * self._block_size
        num_ends = sum(len(self._end_ids(request)) for request in requests)
        assert self._ends.sum() == num_ends
        assert self._ends.min() >= 0

    def _selection(self, rows: NDArray[np.intp]) -> Selection:
        rows = rows[self._groups[rows].argsort(kind="stable")]
        groups = self._groups[rows]
        begins = np.ones(len(rows), np.bool_)
        np.not_equal(groups[1:], groups[:-1], out=begins[1:])
        starts = begins.nonzero()[0]
        lengths = np.empty_like(starts)
        np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
        lengths[-1:] = len(rows) - starts[-1:]
        first_rows = rows[starts]
        ranks = self._ranks[first_rows]
        roster = Roster(
            keys=tuple(self._keys[rows].tolist()),
            adapters=tuple(self._adapters[first_rows].tolist()),
            starts=_read_only(starts),
            num_prompt_tokens=_read_only(self._num_prompt_tokens[rows]),
            sampling=_read_only(self._sampling.take(rows)),
        )
        return Selection(
            rows=rows,
            tickets=self._tickets[rows],
            requests=self._requests[rows].tolist(),
            roster=roster,
            lengths=lengths,
            groups=groups[starts].astype(np.intp),
            rank_parts=(ranks / lengths).repeat(lengths),
            sum_rank=float(ranks.sum()),
            num_adapters=int(np.count_nonzero(groups[starts])),
            specs=self._has_spec[rows].nonzero()[0].tolist(),
        )

    def run(self, selection: Selection, adapter: AdapterKey) -> int | None:
        """Which of a selection's runs of rows is on an adapter; None if none is."""
        group = self._group_of.get(adapter)
        if group is None:
            return None
        run = int(selection.groups.searchsorted(group))
        return run if run < len(selection.groups) and selection.groups[run] == group else None

    def _join_group(self, adapter: AdapterKey | None) -> int:
        if adapter is None:
            return 0
        group = self._group_of.get(adapter)
        if group is None:
            group = self._group_of[adapter] = self._free_groups.pop()
        self._group_sizes[group] += 1
        return group

    def _leave_group(self, adapter: AdapterKey | None) -> None:
        if adapter is None:
            return
        group = self._group_of[adapter]
        self._group_sizes[group] -= 1
        if not self._group_sizes[group]:
            del self._group_of[adapter]
            self._free_groups.append(group)

    def _widen(self, num_blocks: int) -> None:
        missing = num_blocks - self._block_tables.shape[1]
        if missing > 0:
            more = max(missing, self._block_tables.shape[1])
            self._block_tables = np.pad(self._block_tables, ((0, 0), (0, more)), constant_values=-1)

    def _end_ids(self, request: Request) -> Sequence[int]:
        return [i for i in request.submission.end_token_ids if i < len(self._ends)]


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
