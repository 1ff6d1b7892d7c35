"""All settings, and the only place that reads the environment (prefix `LORAPLEX_`)."""

import json
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from loraplex.platform.import_source import ImportSource

DEMO_MODEL = "demo"
"""What `model` says for the base model of the demo."""
CLIENT_VARIABLES = frozenset({"LORAPLEX_URL", "LORAPLEX_KEY"})
"""What commands read that talk to a gateway from elsewhere; no settings of a process."""


class Settings(BaseSettings):
    """Settings of every process. Each field's description is its reference documentation."""

    model_config = SettingsConfigDict(env_prefix="LORAPLEX_", frozen=True, extra="forbid")

    data_dir: Path = Field(
        Path("loraplex-data"),
        description="Folder of the embedded database, adapters, converted models and the secret.",
    )
    database_url: str | None = Field(
        None,
        repr=False,
        description="SQLAlchemy URL (`sqlite+aiosqlite://…`, `postgresql+psycopg://…`). "
        "Default: an SQLite file in the data directory.",
    )
    redis_url: str | None = Field(
        None,
        repr=False,
        description="Redis or Valkey that holds the quotas of several gateways (`redis://…`, "
        "`rediss://…` with TLS, `unix://PATH`); it must not evict keys. "
        "Default: each gateway counts alone.",
    )
    secret: SecretStr | None = Field(
        None,
        description="Pepper of key hashes, at least 32 characters. "
        "Default: made once, kept in the data directory.",
    )
    host: str = Field("127.0.0.1", description="Address on which the gateway listens.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the gateway; 0 takes a free one.")
    model: str = Field(DEMO_MODEL, description="Base model: a path, a hub name, or `demo`.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; `auto` takes a GPU if there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Arithmetic of the model. `auto`: float32 on a CPU, where outputs then equal "
        "transformers and PEFT; on a GPU the checkpoint's own.",
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
        description="Threads of the worker's arithmetic. Default: cores − 1.",
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
    default_max_tokens: int = Field(
        1024, ge=1, description="Output cap of a request that names none; never above the context."
    )
    max_choices: int = Field(
        16,
        ge=1,
        description="Choices (`n`) that one request may ask for; more are refused with 400.",
    )
    max_body_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, description="Largest request body; more is refused with 413."
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="A request body must have arrived after this time, or it gets 408."
    )
    adapters_url: str | None = Field(
        None,
        repr=False,
        description="Where adapters are stored: a folder, or `s3://BUCKET/PREFIX` "
        "(`pip install 'loraplex[s3]'`; keys and endpoint come from the variables of AWS). Gateway "
        "and workers must name the same. Default: `adapters/` in the data directory.",
    )
    adapter_cache_bytes: int = Field(
        32 * 1024**3,
        ge=0,
        description="Adapters that a worker keeps in `adapter-cache/` of its data directory, where "
        "`adapters_url` names no folder; those opened longest ago leave.",
    )
    adapter_sources: dict[str, ImportSource] = Field(
        default={},
        repr=False,
        description="JSON object of names and where adapters may be imported from by them: "
        '`{"ours": "s3://bucket/loras", "share": {"url": "file:///srv/share", "tenants": ["acme"]},'
        ' "own": "s3://bucket/{tenant}", "hub": {"url": "hf://", "tenants": ["*"]}}`. A URL alone '
        "is the operator's, unless it has a place for each `{tenant}`. A hub is asked without this "
        'machine\'s token, but for `"use_hub_token": true`.',
    )
    max_upload_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=1024,
        description="Largest upload of an adapter; more is refused with 413.",
    )
    upload_timeout_s: float = Field(
        600.0,
        gt=0,
        description="The body of an upload must have arrived after this time, or it gets 408.",
    )
    upload_expiry_s: float = Field(
        86_400.0,
        gt=0,
        description="A resumable upload that got no bytes for so long is cancelled.",
    )
    max_uploads: int = Field(
        16, ge=1, description="Uploads whose bytes come at a time; more are refused with 429."
    )
    max_tenant_uploads: int = Field(
        4,
        ge=1,
        description="Of these those of one tenant, and how many resumable ones it may have open.",
    )
    max_tenant_upload_bytes: int = Field(
        4 * 1024**3,
        ge=1024,
        description="Bytes that one tenant's open resumable uploads may announce together.",
    )
    template_timeout_s: float = Field(
        1.0,
        gt=0,
        le=60,
        description="Processor time that an adapter's own chat template gets for a conversation.",
    )
    template_memory_bytes: int = Field(
        256 * 1024**2,
        ge=64 * 1024**2,
        description="Address space of a process in which adapters' chat templates run.",
    )
    template_processes: int = Field(
        2,
        ge=1,
        le=64,
        description="Templates that run at a time in a gateway, one of a tenant; each tenant has a "
        "process of its own, and the last few tenants' wait for their next one.",
    )
    self_test: Literal["auto", "reference", "off"] = Field(
        "auto",
        description="What an uploaded adapter's first answers are compared with before it is "
        "published: `auto` PEFT, in a process of the worker, where peft is installed and the "
        "host's memory has room for a second base model; else, and by `reference`, its own "
        "plain computation; `off` publishes without a test.",
    )
    stream_buffer_events: int = Field(
        1024,
        ge=1,
        description="Events that may wait for one slow client, for each choice; then its request "
        "is aborted.",
    )
    keepalive_s: float = Field(
        15.0, gt=0, description="Pause after which a waiting stream gets a comment line."
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="Time that open requests get to end when the process is stopped."
    )
    requests_per_minute: int = Field(
        600, ge=1, description="Default limit of a tenant that has none of its own."
    )
    tokens_per_minute: int = Field(
        600_000, ge=1, description="Default limit, prompt and output tokens together."
    )
    concurrency: int = Field(
        64, ge=1, description="Default limit of requests that one tenant runs at a time."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug` adds one line per engine step."
    )

    @model_validator(mode="after")
    def _every_variable_is_a_setting(self) -> Self:
        known = {f"LORAPLEX_{name.upper()}" for name in type(self).model_fields} | CLIENT_VARIABLES
        for name in sorted(os.environ):
            if name.upper().startswith("LORAPLEX_") and name.upper() not in known:
                close = get_close_matches(name.upper(), known, 1)
                hint = f"did you mean {close[0]}?" if close else "docs/settings.md has all."
                raise ValueError(f"{name} in the environment is no setting; {hint}")
        return self

    @field_validator("data_dir")
    @classmethod
    def _fits_into_a_url(cls, data_dir: Path) -> Path:
        if "?" in str(data_dir):
            raise ValueError("the path must not contain '?', since the database's URL holds it")
        return data_dir

    @model_validator(mode="after")
    def _a_step_holds_all_that_run(self) -> Self:
        if self.max_running > self.max_step_tokens:
            raise ValueError(
                f"max_running is {self.max_running} and max_step_tokens {self.max_step_tokens}; "
                "each request that runs needs a row of every step"
            )
        return self

    @property
    def resolved_database_url(self) -> str:
        """The database's URL, with the default filled in."""
        return self.database_url or f"sqlite+aiosqlite:///{self.database_path}"

    @property
    def database_path(self) -> Path:
        """File of the embedded database, where no URL is given."""
        return self.data_dir / "loraplex.db"

    @property
    def adapters_dir(self) -> Path:
        """Folder of the adapters' store, where no URL is given."""
        return self.data_dir / "adapters"

    @property
    def kernels_dir(self) -> Path:
        """Folder of what was compiled for this machine; it may be removed at any time."""
        return self.data_dir / "kernels"

    @property
    def costs_dir(self) -> Path:
        """Folder of what was learned about step times; it may be removed at any time."""
        return self.data_dir / "costs"

    @property
    def base_record_path(self) -> Path:
        """File in which the worker says which base model it loaded last."""
        return self.data_dir / "base.json"

    @property
    def resolved_worker_address(self) -> str:
        """The worker's address, with the default filled in."""
        return self.worker_address or f"unix:{self.data_dir / 'worker.sock'}"


def prepare_worker_environment() -> None:
    """Set what torch and its libraries read when they are imported; call it before.

    OpenMP threads that spin while they wait make a step 10 to 60 times slower as soon as anything
    else runs on the machine.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment in which a child process reads the same settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LORAPLEX_")}
    for name, value in settings:
        if value is not None:
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            written = json.dumps(text, default=dict) if isinstance(text, dict) else str(text)
            environment[f"LORAPLEX_{name.upper()}"] = written
    return environment


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
