"""Settings of the worker: its model, memory and planner. `settings.py` reads them."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

DEMO_MODEL = "demo"
"""What `model` says for the base model of the demo."""


class WorkerSettings(BaseSettings):
    """What a worker is told of how to run the model."""

    model: str = Field(DEMO_MODEL, description="Base model: a path, a hub name, or `demo`.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; `auto` takes a GPU if there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Arithmetic of the model. `auto`: float32 on a CPU, where outputs then equal "
        "transformers and PEFT; on a GPU the checkpoint's own.",
    )
    kernels: Literal["auto", "compiled", "torch"] = Field(
        "auto",
        description="Who computes on a CPU. `auto`: kernels compiled at the first start where a "
        "C++ compiler is, else torch; dense layers by whoever is fastest in a short measurement, "
        "which is kept, so that later starts compute alike. `compiled`: compiled kernels wherever "
        "there is one, so that a row's bits do not depend on its batch, but for experts and "
        "adapters' own whole weights and token rows; the worker refuses to start without. "
        "`torch`: torch alone, oneDNN in it included; nothing is compiled or loaded.",
    )
    kernels_dir: Path | None = Field(
        None,
        description="Folder of what is compiled for the processor, and of who was measured to "
        "compute dense layers fastest on it; it may be shared, so that workers compute alike, and "
        "removed at any time. Default: `kernels` in the data directory.",
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus output in tokens. Default: the model's limit."
    )
    worker_address: str | None = Field(
        None,
        description="Where gateway and worker meet: `unix:PATH` or `tcp://HOST:PORT`. "
        "Default: `worker.sock` in the data directory.",
    )
    worker_token: SecretStr | None = Field(
        None, description="Shared secret of gateway and worker; required for `tcp://`."
    )
    worker_tls_cert: Path | None = Field(
        None,
        description="PEM certificate of a `tcp://` worker; the gateway trusts exactly this one.",
    )
    worker_tls_key: Path | None = Field(None, description="PEM private key of a `tcp://` worker.")
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Threads of the worker's arithmetic. Default: cores − 1, on a CPU without "
        "those of `assist_processes`.",
    )
    cuda_graphs: bool = Field(
        default=True,
        description="On a GPU, record steps of up to 32 decodes as CUDA graphs when the worker "
        "starts, so that the host is not what such steps wait for; see `docs/kernels.md`.",
    )
    kv_memory_bytes: int | None = Field(
        None, ge=1, description="Memory of the KV cache. Default: sized from free memory at start."
    )
    adapter_memory_bytes: int | None = Field(
        None,
        ge=1,
        description="Memory of resident adapters. Default: sized from free memory at start; on a "
        "CPU, if `LORAPLEX_KV_MEMORY_BYTES` is not set either, half of the KV cache is lent to "
        "adapters while it is free and they need it.",
    )
    host_adapter_bytes: int | None = Field(
        None,
        ge=0,
        description="Host memory for adapters that were read and verified, so that those which the "
        "device gave up come back without the store; in the dtype of their files. 0 keeps none. "
        "Default: a tenth of the host's free memory.",
    )
    block_size: int = Field(16, ge=1, le=256, description="Tokens per KV block.")
    swap_memory_bytes: int | None = Field(
        None,
        ge=0,
        description="Host memory for what preempted requests have computed; 0 computes it again. "
        "Default: a quarter of the KV cache, at most a twentieth of the host's free memory.",
    )
    prefix_cache: bool = Field(
        default=True,
        description="Keep what requests have computed while there is room, for requests of the "
        "same tenant and adapter that begin alike; see `docs/scheduling.md`.",
    )
    max_step_tokens: int = Field(
        512, ge=1, description="Rows of one forward pass: decodes plus chunks of prompts."
    )
    max_running: int = Field(64, ge=1, description="Requests that run at the same time.")
    max_waiting_requests: int = Field(
        512, ge=1, description="Requests that may wait in the worker; more are refused with 503."
    )
    max_waiting_tokens: int = Field(
        262_144, ge=1, description="Prompt tokens that may wait in the worker; as above."
    )
    scheduling: Literal["fair", "fcfs"] = Field(
        "fair",
        description="Who runs first: tenants by their shares of the machine, or requests in order "
        "of arrival; see `docs/scheduling.md`.",
    )
    quantum_ms: float = Field(
        500.0,
        gt=0,
        allow_inf_nan=False,
        description="Time of the machine that a turn gives a tenant of weight 1. Smaller is fairer "
        "within shorter times; larger loads adapters less often.",
    )
    overdraft_ms: float = Field(
        1000.0,
        ge=0,
        allow_inf_nan=False,
        description="How far tenants may exceed their shares to fill gaps, and what one request "
        "may make those of other tenants compute again.",
    )
    max_skips: int = Field(
        16, ge=1, description="Times that a request may be overtaken by its tenant's later ones."
    )
    priority_ttft_ms: float = Field(
        1000.0,
        gt=0,
        description="Target for the first token of requests of the tier `priority`. Targets order "
        "requests and bound how long a step may take; nothing is refused for them.",
    )
    priority_tpot_ms: float = Field(
        100.0, gt=0, description="Target for each further token of the tier `priority`."
    )
    default_ttft_ms: float = Field(
        5000.0, gt=0, description="Target for the first token of the tier `default`."
    )
    default_tpot_ms: float = Field(
        250.0, gt=0, description="Target for each further token of the tier `default`."
    )
    adapter_copy_bytes_per_s: int | None = Field(
        None,
        ge=1_000_000,
        description="Bytes of adapters a second that go to the device at most: a throttle, for "
        "trying on one machine what a slower link would do. It is reported wherever times are. "
        "Default: as fast as memory goes.",
    )
    assist_processes: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Processes that compute adapters' parts of prompts on the host while the "
        "adapters are copied, each bound to a core. Default: on a GPU a quarter of the cores, at "
        "most 8; on a CPU none, since its copies are faster than any help, unless "
        "`adapter_copy_bytes_per_s` slows them.",
    )
    adapter_route: Literal["choose", "wait", "layer-wise", "assist"] = Field(
        "choose",
        description="How a request goes on whose adapter is not on the device. `choose`: by what "
        "is predicted to bring its first token first; `wait`: when all of the adapter is there; "
        "`layer-wise`: on the layers that have come; `assist`: the same, with the host's help for "
        "those that have not. All but `choose` are for comparison.",
    )
    max_transfer_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes of loads of adapters that may be on their way to the device at a time; "
        "one always may, and prefetches start within what loads leave. Default: a quarter of the "
        "memory of resident adapters.",
    )
    prefetch: Literal["none", "queue", "all"] = Field(
        "queue",
        description="Adapters that are loaded before they are needed, in memory that nobody needs "
        "more: `queue` those of requests that will start soon, `all` also those that are likely to "
        "be asked for again, `none` nothing.",
    )
    calibration_s: float = Field(
        3.0,
        ge=0,
        le=600,
        description="Longest time in which a worker learns how long steps take before it serves "
        "for the first time with a model on a machine, at most 600; 0 lets it learn from traffic "
        "alone. What was learned before is used in any case: it is in `costs/` of the data folder.",
    )
    journal_dir: Path | None = Field(
        None, description="Folder of the worker's usage journal. Default: in the data directory."
    )
    journal_days: int = Field(
        7, ge=1, description="Days for which the journal has a request after its end."
    )

    @model_validator(mode="after")
    def _a_step_holds_all_that_run(self) -> Self:
        if self.max_running > self.max_step_tokens:
            raise ValueError(
                f"max_running is {self.max_running} and max_step_tokens {self.max_step_tokens}; "
                "each request that runs needs a row of every step"
            )
        return self
