"""A runner without a model: it keeps token ids where a model keeps keys and values.

The next token is a function of all tokens that the block table leads to, so that a wrong block,
a missing position or a stale write changes the output. What one adapter wrote no other may read,
and where an adapter begins to act changes the output too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import Chunk, ColdChunk, ColdOutput, SampleSpec, StepOutput, StepPlan

VOCAB_SIZE = 1000


def next_token(
    token_ids: Sequence[int], adapter: AdapterKey | None, seed: int = 0, start: int = 0
) -> int:
    """The token that follows `token_ids` on `adapter`, which acts from position `start` on; another
    for each seed."""
    seed += 7 if adapter is None else sum(map(ord, "".join(adapter))) + 1009 * start
    for token_id in token_ids:
        seed = (seed * 31 + token_id + 1) % 1_000_003
    return seed % VOCAB_SIZE


def expected_output(
    prompt: Sequence[int],
    adapter: AdapterKey | None,
    max_tokens: int,
    eos: int,
    seed: int = 0,
    start: int = 0,
) -> list[int]:
    """What a choice must give, whatever shared its batches."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids, adapter, seed, start))
        if token_ids[-1] == eos:
            break
    return token_ids[len(prompt) :]


class SimulatedRunner:
    """Computes plans against a simulated KV pool."""

    overlaps = False
    num_cold_passes = 0
    num_assistants = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._pool: list[list[tuple[int, AdapterKey | None] | None]] = [
            [None] * block_size for _ in range(num_blocks)
        ]
        self._host: dict[int, list[tuple[int, AdapterKey | None] | None]] = {}
        self.layers: dict[AdapterKey, tuple[int, int]] = {}
        """How many layers of an adapter there are, of how many, as the test says; all if it does
        not."""
        self._passes: dict[str, tuple[Chunk, ColdOutput]] = {}
        self.plans: list[StepPlan] = []
        self.num_computed = 0
        """Positions that were computed, those computed again included."""

    def copy(self, plan: StepPlan) -> None:
        for _, device_blocks, host_blocks in plan.copies_out:
            for device, host in zip(device_blocks, host_blocks, strict=True):
                self._host[host] = list(self._pool[device])
        self.poison(plan.lent_blocks)
        for _, device_blocks, host_blocks in plan.copies_in:
            for device, host in zip(device_blocks, host_blocks, strict=True):
                self._pool[device] = list(self._host[host])

    def build(
        self,
        plan: StepPlan,
        adapters: Mapping[AdapterKey, object],
        arriving: Mapping[AdapterKey, LoadProgress],
    ) -> StepPlan:
        for chunk in plan.chunks:
            assert chunk.adapter is None or chunk.adapter in adapters, "adapter is not resident"
        return plan

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, launched: StepPlan) -> StepOutput:
        return self.run(launched)

    def keep_passes(self, plan: StepPlan) -> None:
        pass

    def abandon(self) -> None:
        pass

    def run(self, plan: StepPlan) -> StepOutput:
        self.plans.append(plan)
        cold = {each.chunk.request_id: self._pass(each) for each in plan.cold}
        listed = {each.chunk.request_id: each.chunk for each in plan.cold}
        self._passes = {key: (listed[key], cold[key]) for key in cold if not cold[key].is_done}
        for chunk in plan.chunks:
            self.write(chunk)
        tokens = {
            chunk.request_id: self._sample(chunk, chunk.sample)
            for chunk in plan.chunks
            if chunk.sample is not None
        }
        return replace(StepOutput.of(plan, tokens), cold=cold)

    def _pass(self, cold: ColdChunk) -> ColdOutput:
        """Compute the layers that there are, or that the host may compute instead."""
        chunk = cold.chunk
        before, output = self._passes.get(chunk.request_id, (chunk, ColdOutput(0)))
        assert before == chunk, "a chunk has changed under its pass"
        assert chunk.adapter is not None
        there, of_layers = self.layers.get(chunk.adapter, (1 << 30, cold.until_layer))
        reach = cold.until_layer if cold.may_assist else min(there, cold.until_layer)
        part = output.part
        if cold.advances:
            part = max(part, min(reach / max(1, of_layers), cold.until_part))
        num_layers = max(output.num_layers, int(part * of_layers + 1e-9))
        assert cold.advances or num_layers == output.num_layers
        num_host_layers = output.num_host_layers + max(
            0, num_layers - max(there, output.num_layers)
        )
        if num_layers < of_layers:
            return ColdOutput(num_layers, num_host_layers, part=part)
        self.write(chunk)
        token_id = None if chunk.sample is None else self._sample(chunk, chunk.sample)
        return ColdOutput(num_layers, num_host_layers, is_done=True, token_id=token_id, part=1.0)

    def _sample(self, chunk: Chunk, spec: SampleSpec) -> int:
        token_ids, start = self._read(chunk)
        if spec.penalties is not None:
            end = len(token_ids) - spec.position
            assert spec.penalties.output_ids == tuple(token_ids[end:])
            assert set(spec.penalties.prompt_ids) == set(token_ids[:end])
        return next_token(token_ids, chunk.adapter, spec.seed, start)

    def write(self, chunk: Chunk) -> None:
        """Compute its keys and values."""
        self.num_computed += len(chunk.token_ids)
        for position, token_id in enumerate(chunk.token_ids, start=chunk.start):
            block = chunk.block_table[position // self._block_size]
            self._pool[block][position % self._block_size] = token_id, chunk.adapter

    def poison(self, blocks: Iterable[int]) -> None:
        """Make what these blocks hold unreadable."""
        for block in blocks:
            self._pool[block] = [None] * self._block_size

    def _read(self, chunk: Chunk) -> tuple[list[int], int]:
        """The tokens behind the chunk's end, and from which on its adapter has acted."""
        token_ids: list[int] = []
        start = 0
        for position in range(chunk.start + len(chunk.token_ids)):
            block = chunk.block_table[position // self._block_size]
            written = self._pool[block][position % self._block_size]
            assert written is not None, "a position was never computed"
            token_id, adapter = written
            token_ids.append(token_id)
            if adapter is None and chunk.adapter is not None and start == position:
                start += 1
            else:
                assert adapter == chunk.adapter, "another adapter's keys and values are read"
        return token_ids, start
