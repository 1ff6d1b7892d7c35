"""How long a step takes on a device that is not here.

Times of linear layers are measured ones where the profile is a table of vidur's
(https://github.com/microsoft/vidur, MIT). Times of attention, adapters and copies are synthetic:
bytes over bandwidth and operations over rate, with the numbers below.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Protocol

import numpy as np

from loraplex.engine.cost import CostModel
from loraplex.engine.cost_features import Floats, StepFeatures
from loraplex.engine.errors import CostModelInvalid
from loraplex.engine.simulation.errors import ProfileInvalid

_GIB = 1 << 30
_MIB = 1 << 20
_SAVED_BYTES_PER_RANK = 200_000


class StepTimes(Protocol):
    """Tells how long a step takes."""

    def step_ms(self, step: StepFeatures) -> float:
        """Milliseconds that the device is busy with the step."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """A device with one base model on it."""

    name: str
    times: StepTimes
    kv_tokens: int
    """Positions that its KV pool holds."""
    max_step_tokens: int
    """Rows of one forward pass."""
    max_running: int
    bytes_per_rank: int
    """Of an adapter on all linear layers, per unit of its rank."""
    copy_bytes_per_s: float
    """From the host's memory to the device's."""
    block_size: int = 16
    """Positions per KV block."""
    host_operations_per_s: float = 1e12
    """Of low-rank updates on the host's processors, as reached."""
    steps_between_joins: int = 1
    """Steps from one in which waiting requests are admitted to the next."""
    kv_token_bytes: int = 0
    """Of all layers, for one position."""
    host_kv_tokens: int = 0
    """Positions that the host's pool holds, for preempted requests; 0 computes them again."""
    response_ms: float = 0.0
    """From the end of a step to the client, and from the client to the queue; in every TTFT."""


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """Steps of a simple machine: two constants and two slopes."""

    constant_ms: float
    prompts_ms: float
    """More, for a step that computes any prompt."""
    prompt_token_ms: float
    kv_token_ms: float
    """Per token of context that a decode reads."""

    def step_ms(self, step: StepFeatures) -> float:
        """Milliseconds of the step."""
        return (
            self.constant_ms
            + self.prompts_ms * (step.prefill_tokens > 0)
            + self.prompt_token_ms * step.prefill_tokens
            + self.kv_token_ms * step.kv_tokens
        )


@dataclass(frozen=True, slots=True)
class _Hardware:
    bytes_per_s: float
    """Of the device's memory, as reached by kernels."""
    operations_per_s: float
    """Of attention over a prompt, as reached."""


_HARDWARE: Mapping[str, _Hardware] = {
    "a100": _Hardware(1.3e12, 150e12),
    "h100": _Hardware(2.2e12, 350e12),
    "a40": _Hardware(0.55e12, 75e12),
}
_NUM_LAYERS: Mapping[tuple[int, int], int] = {
    (4096, 11008): 32,
    (4096, 14336): 32,
    (8192, 28672): 80,
}
"""By width of the model and of its MLP, which is what the tables tell: Llama 2 7B and 70B, Llama 3
8B."""
_LINEAR_OPERATIONS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
_LAUNCH_MS = 2.0
_ADAPTER_MS = 0.02
_COPY_MS_PER_BYTE = 5e-9
_COPY_BYTES_PER_S = 24e9
_KV_BYTES = 24 * _GIB


@dataclass(frozen=True, slots=True)
class ProfiledTimes:
    """Linear layers as measured, the rest by bandwidth and rate."""

    num_tokens: Floats
    """Where linear layers were measured, ascending; shape (points,)."""
    linear_ms: Floats
    """All layers; shape (points,)."""
    kv_token_ms: float
    attention_ms: float
    """Per pair of a prompt's token and one before it."""
    rank_ms: float

    def step_ms(self, step: StepFeatures) -> float:
        """Milliseconds of the step; beyond the table its last slope goes on."""
        return (
            self._linear(step.num_tokens)
            + _LAUNCH_MS
            + self.kv_token_ms * step.kv_tokens
            + self.attention_ms * (step.prefill_squared / 2 + step.prefill_context)
            + self.rank_ms * step.sum_rank
            + _ADAPTER_MS * step.num_adapters
            + _COPY_MS_PER_BYTE * step.bytes_in_flight
        )

    def _linear(self, num_tokens: int) -> float:
        # The next measured number of tokens: tiles are computed whole.
        position = int(np.searchsorted(self.num_tokens, num_tokens))
        if position < len(self.num_tokens):
            return float(self.linear_ms[position])
        return float(self.linear_ms[-1] * num_tokens / self.num_tokens[-1])


def read_device(name: str) -> Device:
    """Return a built-in device by name, or one from the path of a vidur table or of a cost model
    that an engine has saved.

    Raises ProfileInvalid.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    path = Path(name)
    if not path.is_file():
        known = ", ".join(sorted(_BUILT_IN))
        raise ProfileInvalid(f"profile {name!r} is neither a file nor one of: {known}")
    return _saved_device(path) if path.suffix == ".json" else profiled_device(path)


def profiled_device(path: Path) -> Device:
    """Read a table of vidur's `mlp.csv` kind; its file's name must tell the device.

    Raises ProfileInvalid.
    """
    hardware = next((spec for key, spec in _HARDWARE.items() if key in path.name.lower()), None)
    if hardware is None:
        raise ProfileInvalid(
            f"profile {path}: the file's name must hold one of {', '.join(_HARDWARE)}, since the "
            "table does not tell the device"
        )
    try:
        with path.open(newline="") as file:
            rows = [r for r in csv.DictReader(file) if r["num_tensor_parallel_workers"] == "1"]
        width, mlp_width = int(rows[0]["n_embd"]), int(rows[0]["n_expanded_embd"])
        kv_width = width * int(rows[0]["n_kv_head"]) // int(rows[0]["n_head"])
        num_layers = _NUM_LAYERS[width, mlp_width]
        by_tokens = {int(row["num_tokens"]): _linear_ms(row, num_layers) for row in rows}
        _refuse_impossible(by_tokens)
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise ProfileInvalid(
            f"profile {path}: not a table of vidur's mlp.csv kind for a model that is known here "
            f"({error!r})"
        ) from error
    points = np.array(sorted(by_tokens))
    kv_bytes = 2 * 2 * kv_width * num_layers
    all_linears = 2 * (width + width) + 2 * (width + kv_width) + 3 * (width + mlp_width)
    rank_bytes = 2 * all_linears * num_layers
    times = ProfiledTimes(
        num_tokens=points.astype(float),
        linear_ms=np.array([by_tokens[point] for point in points]),
        kv_token_ms=kv_bytes / hardware.bytes_per_s * 1e3,
        attention_ms=4 * width * num_layers / hardware.operations_per_s * 1e3,
        rank_ms=rank_bytes / hardware.bytes_per_s * 1e3,
    )
    return Device(
        name=path.stem,
        times=times,
        kv_tokens=_KV_BYTES // kv_bytes,
        max_step_tokens=2048,
        max_running=256,
        bytes_per_rank=rank_bytes,
        kv_token_bytes=kv_bytes,
        copy_bytes_per_s=_COPY_BYTES_PER_S,
    )


def _refuse_impossible(by_tokens: Mapping[int, float]) -> None:
    if min(by_tokens) < 1:
        raise ValueError("it has times of no tokens")
    for num_tokens, ms in by_tokens.items():
        if not 0 < ms < inf:
            raise ValueError(f"{num_tokens} tokens take {ms} ms")


def _linear_ms(row: Mapping[str, str], num_layers: int) -> float:
    """All layers' linear operations at one number of tokens; an operation may be missing."""
    measured = (row.get(f"time_stats.{name}.median") for name in _LINEAR_OPERATIONS)
    return sum(float(value) for value in measured if value) * num_layers


@dataclass(frozen=True, slots=True)
class LearnedTimes:
    """Steps as a cost model predicts them that has learned on the device itself."""

    model: CostModel
    bytes_per_rank: int
    """An engine's model counts ranks in MiB of adapters."""

    def step_ms(self, step: StepFeatures) -> float:
        """Milliseconds of the step."""
        mib = step.sum_rank * self.bytes_per_rank / _MIB
        return max(self.model.predict_ms(replace(step, sum_rank=mib)), 1e-3)


def _saved_device(path: Path) -> Device:
    try:
        model = CostModel.from_json(path.read_bytes())
    except CostModelInvalid as error:
        raise ProfileInvalid(f"profile {path}: {error}") from error
    return Device(
        name=f"{model.subject.model} on {model.subject.device}",
        times=LearnedTimes(model, _SAVED_BYTES_PER_RANK),
        kv_tokens=65_536,
        max_step_tokens=512,
        max_running=64,
        bytes_per_rank=_SAVED_BYTES_PER_RANK,
        copy_bytes_per_s=5e9,
    )


def a10g_llama2_7b() -> Device:
    """An A10G with Llama 2 7B under S-LoRA's runtime, as in VTC's published runs.

    Its times are what `calibration.fit_times` finds in the log of the FCFS run alone
    (Ying1123/VTC-artifact, Apache-2.0), all of them 0.7 % longer, with which that run ends when the
    published one did. Pool, rows per step and the rhythm of admission are settings of that runtime.
    """
    return Device(
        name="a10g-llama2-7b",
        times=LinearTimes(
            constant_ms=29.06, prompts_ms=53.87, prompt_token_ms=0.1675, kv_token_ms=0.001466
        ),
        kv_tokens=10_000,
        max_step_tokens=3_072,
        max_running=1000,
        bytes_per_rank=5_000_000,
        copy_bytes_per_s=12e9,
        block_size=1,
        steps_between_joins=11,
        response_ms=5.0,
    )


_BUILT_IN: Mapping[str, Callable[[], Device]] = {"a10g-llama2-7b": a10g_llama2_7b}
