"""All settings, and the only place that reads the environment (prefix `LORAPLEX_`)."""

import os
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from loraplex.platform.admission_rules import AdmissionRule
from loraplex.platform.import_source import ImportSource
from loraplex.platform.worker_settings import WorkerSettings

CLIENT_VARIABLES = frozenset({"LORAPLEX_URL", "LORAPLEX_KEY"})
"""What commands read that talk to a gateway from elsewhere; no settings of a process."""


class Settings(WorkerSettings):
    """Settings of every process, the worker's among them. A field's description is its reference
    documentation."""

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
        "`rediss://…` with TLS, `redis+cluster://…`, `unix://PATH`); it must not evict keys. "
        "Default: each gateway counts alone.",
    )
    secret: SecretStr | None = Field(
        None,
        description="Pepper of key hashes, at least 32 characters. "
        "Default: made once, kept in the data directory.",
    )
    usage_days: int | None = Field(
        None, ge=1, description="Days that usage is kept (`docs/operations.md`). Default: for ever."
    )
    host: str = Field("127.0.0.1", description="Address on which the gateway listens.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the gateway; 0 takes a free one.")
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
    max_tenant_hints: int = Field(
        8,
        ge=1,
        le=64,
        description="Adapters that one tenant may have warmed at a time, on each gateway; more are "
        "refused with 429.",
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
    intent_lease_s: float = Field(
        60.0, ge=1, le=600, description="Time after which others settle a dead gateway's requests."
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
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#]+$",
        description="Address by which browsers reach the gateway, such as "
        "`https://loraplex.example.org`; needed where a proxy ends TLS. With `https` the console's "
        "cookies are sent by TLS alone. Default: what each request says.",
    )
    trusted_proxies: str | None = Field(
        None,
        description="Networks of proxies, with commas, such as `10.0.0.0/8,127.0.0.1/32`: of a "
        "connection from there `X-Forwarded-For` tells the client's address, by which keys and "
        "sign-ins are judged, and `X-Forwarded-Proto` the scheme. Default: nobody is believed, and "
        "the proxy is the client.",
    )
    oidc_issuer: str | None = Field(
        None,
        pattern=r"^(https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/])",
        description="Issuer by which people sign in to the console with OpenID Connect, exactly as "
        "its document calls it; see `docs/sign-in.md`. Default: people sign in with passwords and "
        "admin keys alone.",
    )
    oidc_client_id: str | None = Field(
        None, description="What the issuer knows this platform by; needed with an issuer."
    )
    oidc_client_secret: SecretStr | None = Field(
        None, description="Secret of that client; none for a public client, which PKCE protects."
    )
    oidc_scopes: str = Field(
        "openid email profile", description="What the issuer is asked for, with spaces."
    )
    oidc_admit: list[AdmissionRule] = Field(
        default=[],
        description="JSON list of who is admitted with which role, as of each sign-in: "
        '`[{"email_domain": "acme.example", "role": "developer", "tenant": "acme"}, {"claim": '
        '"groups", "value": "ml-ops", "role": "operator"}]`. Default: people must be added first.',
    )
    oidc_leeway_s: float = Field(
        60.0,
        ge=0,
        le=600,
        description="How far the clocks of the issuer and of this gateway may differ.",
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

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, networks: str | None) -> str | None:
        for network in listed_networks(networks):
            ip_network(network)  # says what is wrong with it
        return networks

    @model_validator(mode="after")
    def _an_issuer_knows_its_client(self) -> Self:
        if self.oidc_issuer is not None and self.oidc_client_id is None:
            raise ValueError("LORAPLEX_OIDC_ISSUER needs LORAPLEX_OIDC_CLIENT_ID")
        if self.oidc_issuer is not None and "openid" not in self.oidc_scopes.split():
            raise ValueError("LORAPLEX_OIDC_SCOPES must have openid")
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
    def compiled_dir(self) -> Path:
        """Folder of compiled code and of measurements, with the default filled in."""
        return self.kernels_dir or self.data_dir / "kernels"

    @property
    def costs_dir(self) -> Path:
        """Folder of what was learned about step times; it may be removed at any time."""
        return self.data_dir / "costs"

    @property
    def resolved_journal_dir(self) -> Path:
        """Folder of the usage journal, with the default filled in."""
        return self.journal_dir or self.data_dir / "journal"

    @property
    def base_record_path(self) -> Path:
        """File in which the worker says which base model it loaded last."""
        return self.data_dir / "base.json"

    @property
    def resolved_worker_address(self) -> str:
        """The worker's address, with the default filled in."""
        return self.worker_address or f"unix:{self.data_dir / 'worker.sock'}"


def listed_networks(text: str | None) -> list[str]:
    """Return the parts of a list with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def prepare_worker_environment() -> None:
    """Set what torch and its libraries read when they are imported; call it before.

    OpenMP threads that spin while they wait make a step 10 to 60 times slower as soon as anything
    else runs on the machine.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
