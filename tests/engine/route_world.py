"""A machine whose link, host and steps are other than anybody knows, on which cold starts take
their time layer by layer. It shares no formula with what predicts it."""

from dataclasses import dataclass

import numpy as np

from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.routes import ColdRoute, ColdStart, Routes

LAYERS = 32


class Costs:
    """Knows a step's time, but for a factor; the rest of the protocol is not asked."""

    error, num_steps = 0.05, 1000

    def predict_ms(self, step: StepFeatures) -> float:
        return 8.0 + 0.06 * step.num_tokens + 1e-5 * step.prefill_squared


@dataclass
class World:
    """The truth."""

    bytes_per_s: float
    host_ms_per_work: float
    """Per million of tokens × bytes of a layer, of all processes together."""
    host_fixed_ms: float
    slowness: float
    """Of steps, beside what is predicted: little, since an engine learns their times apart."""
    noise: float
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.costs = Costs()

    def cold(self) -> ColdStart:
        rng = self.rng
        size = int(rng.choice([8, 16, 32, 64])) * 2_000_000
        return ColdStart(
            num_tokens=int(rng.integers(8, 1500)),
            num_context=0,
            rank=16.0,
            bytes_ahead=int(rng.choice([0, 0, 50_000_000])),
            bytes_left=size,
            num_layers=0,
            of_layers=LAYERS,
            num_decodes=int(rng.choice([0, 0, 4, 30])),
        )

    def ms(self, route: ColdRoute, cold: ColdStart) -> float:
        """What it takes without noise."""
        decode_ms = self._step(cold.num_decodes, 0) if cold.num_decodes else 0.0
        layer_bytes = cold.bytes_left / cold.of_layers
        comes = [
            (cold.bytes_ahead + (layer + 1) * layer_bytes) / self.bytes_per_s * 1e3
            for layer in range(cold.of_layers)
        ]
        if route == "wait":
            now = 0.0
            while now < comes[-1]:
                now = now + decode_ms if decode_ms else comes[-1]
            return now + self._step(cold.num_tokens + cold.num_decodes, cold.num_tokens)
        layer_ms = self._step(cold.num_tokens, cold.num_tokens) / cold.of_layers
        host_ms = self.host_fixed_ms + self.host_ms_per_work * cold.num_tokens * layer_bytes / 1e6
        now = decode_ms
        for comes_ms in comes:
            if route == "assist" and comes_ms > now:
                now += max(layer_ms, host_ms)
                continue
            while comes_ms > now:
                now = now + decode_ms if decode_ms else comes_ms
            now += layer_ms
        return now

    def _step(self, num_tokens: int, prefill: int) -> float:
        ms = 8.0 + 0.06 * num_tokens + 1e-5 * prefill * prefill
        return ms * self.slowness

    def serve(self, routes: Routes, cold: ColdStart) -> ColdRoute:
        """Let it go on as chosen, and tell what happened; noise as of a busy machine."""
        decision = routes.choose(cold)
        disturbed = float(self.rng.lognormal(0.0, self.noise))
        routes.note_first_token(decision, self.ms(decision.route, cold) * disturbed)
        copy_s = cold.bytes_left / self.bytes_per_s
        if self.rng.random() < 0.1:
            copy_s *= 20  # one copy in ten is held up
        routes.note_copy(cold.bytes_left, copy_s)
        if decision.route == "assist":
            work = cold.num_tokens * cold.bytes_left / 1e6
            ms = self.host_fixed_ms * cold.of_layers + self.host_ms_per_work * work
            routes.note_host(cold.num_tokens, cold.bytes_left, ms, cold.of_layers)
        return decision.route
