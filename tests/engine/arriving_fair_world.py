"""The same auditor where requests begin on adapters of which layers are still to come."""

from math import ceil

from tests.engine.fair_world import World

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.request import Request

OF_LAYERS = 4


class ArrivingWorld(World):
    """Each adapter comes in four layers, evenly over the time of its load."""

    def __init__(self, *values: object, **config: object) -> None:
        super().__init__(*values, **config)
        self.num_passes = 0
        """That were done."""
        self._came: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def _is_loading(self, request: Request) -> bool:
        return self.scheduler._outlook.adapter_state(request) is State.LOADING

    def _audit_plan(self, plan: StepPlan) -> None:
        super()._audit_plan(plan)
        for key in (*plan.loads, *plan.prefetches):
            self.runner.layers[key] = 0, OF_LAYERS
        listed = {cold.chunk.request_id for cold in plan.cold}
        self._came = {key: came for key, came in self._came.items() if key in listed}

    def _end_loads(self) -> None:
        super()._end_loads()
        for key, at in self.loading.items():
            left = ceil((at - self.now) / self._layer_s(key) - 1e-6)
            num_layers = max(OF_LAYERS - left, self.runner.layers[key][0])
            self.runner.layers[key] = num_layers, OF_LAYERS
            self.residency.note_layers(key, num_layers, OF_LAYERS, is_open=True)
        for key in self.runner.layers.keys() - self.loading.keys():
            self.runner.layers[key] = OF_LAYERS, OF_LAYERS

    def _next_arrival(self) -> float:
        """Of a layer."""
        num_left = {key: OF_LAYERS - self.runner.layers[key][0] for key in self.loading}
        times = (
            at - max(0, num_left[key] - 1) * self._layer_s(key) for key, at in self.loading.items()
        )
        return max(self.now, min(times, default=self.now))

    def _layer_s(self, key: AdapterKey) -> float:
        return self._load_ms(key) / OF_LAYERS / 1e3

    def _rows_of_passes(self, plan: StepPlan, output: StepOutput) -> int:
        self._rows.clear()
        for cold in plan.cold:
            key, told = cold.chunk.request_id, output.cold[cold.chunk.request_id]
            num_layers = told.num_layers - self._came.get(key, 0)
            self._came[key] = told.num_layers
            if num_layers or told.is_done:
                num_tokens = len(cold.chunk.token_ids)
                self._rows[key] = max(1, ceil(num_tokens * num_layers / OF_LAYERS))
            self.num_passes += told.is_done
            if told.is_done:
                del self._came[key]
                self.computed[key] = cold.chunk.start + len(cold.chunk.token_ids)
                self._pay_again(key, cold.chunk.start, self.computed[key])
        return sum(self._rows.values())

    def _pay_again(self, key: str, start: int, end: int) -> None:
        tenant, again = self.tenants[key], self.again.get(key, {})
        for position in range(start, end):
            payer = again.pop(position, tenant)
            if payer != tenant:
                self.auditor.service_ms[tenant] -= self.costs.token_ms
                self.auditor.service_ms[payer] += self.costs.token_ms

    def _audit_step(self, plan: StepPlan, step_ms: float, num_rows: int) -> None:
        super()._audit_step(plan, step_ms, num_rows)
        for key, rows in self._rows.items():
            self.auditor.service_ms[self.tenants[key]] += step_ms * rows / num_rows
