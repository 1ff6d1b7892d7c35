"""`loraplex serve`, `gateway`, `worker`: the processes that serve."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loraplex.platform.cli.context import DatabaseUrl, DataDir, failure, reporting_errors

if TYPE_CHECKING:
    from loraplex.platform.serve import Ready
    from loraplex.platform.settings import Settings

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one. Default: 8000.")
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        help="Redis or Valkey for the quotas of several gateways. "
        "Default: LORAPLEX_REDIS_URL, else each gateway counts alone.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None, typer.Option(help="Base model: a folder, a hub name, or `demo`. Default: demo.")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(help="Where the model runs. Default: auto."),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Arithmetic of the model. Default: auto."),
]
WorkerAddress = Annotated[
    str | None,
    typer.Option(
        help="Where gateway and worker meet: unix:PATH or tcp://HOST:PORT. "
        "Default: worker.sock in the data directory.",
        show_default=False,
    ),
]
EXIT_INTERRUPTED = 130


def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    redis_url: RedisUrl = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line when ready, for scripts.")
    ] = False,
) -> None:
    """Serve on this machine: gateway, worker, and a demo to try. Stop with Ctrl-C."""
    with _starting():
        settings = _settings(
            host=host,
            port=port,
            data_dir=data_dir,
            database_url=database_url,
            redis_url=redis_url,
            model=model,
            device=device,
            dtype=dtype,
        )
        from loraplex.platform.serve import serve as run

        if not as_json:
            typer.echo(f"Starting; data is kept in {settings.data_dir.resolve()}", err=True)
        _tell_end(_run(run(settings, _print_json if as_json else _print_welcome)))


def gateway(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    redis_url: RedisUrl = None,
    worker_address: WorkerAddress = None,
) -> None:
    """Serve HTTP over a worker that runs elsewhere (`loraplex worker`)."""
    with _starting():
        settings = _settings(
            host=host,
            port=port,
            data_dir=data_dir,
            database_url=database_url,
            redis_url=redis_url,
            worker_address=worker_address,
        )
        from loraplex.platform.gateway import run_gateway

        _tell_end(_run(run_gateway(settings, _print_url)))


def worker(
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    worker_address: WorkerAddress = None,
    stop_with_parent: Annotated[
        bool,
        # For `serve`, which starts it: whoever runs a worker alone has no use for it.
        typer.Option(help="End when standard input ends, that is with the parent.", hidden=True),
    ] = False,
) -> None:
    """Run the engine: one base model and the adapters of the data directory."""
    from loraplex.platform.supervisor import START_REFUSED

    with _starting(START_REFUSED):
        settings = _settings(
            data_dir=data_dir,
            model=model,
            device=device,
            dtype=dtype,
            worker_address=worker_address,
        )
        from loraplex.platform.settings import prepare_worker_environment

        prepare_worker_environment()
        from loraplex.platform.worker import run_worker

        run_worker(settings, stop_with_parent=stop_with_parent)


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run a gateway in the server's own event loop, where that is installed: it takes half the
    time that asyncio's takes."""
    from uvicorn.loops.auto import auto_loop_factory

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(work)


def _settings(**given: Any) -> "Settings":  # noqa: ANN401  each option has its own type
    from loraplex.platform.log import configure_logging
    from loraplex.platform.settings import Settings

    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    configure_logging(settings.log_level)
    return settings


@contextmanager
def _starting(status: int = 1) -> Iterator[None]:
    """Tell in one line why a process cannot start; `status` is the exit status then. An engine
    that crashes once it runs keeps its traceback."""
    from loraplex.engine.errors import EngineError
    from loraplex.platform.demo.base import DemoModelMissing
    from loraplex.platform.gateway import PortInUse
    from loraplex.platform.sole import DataDirInUse
    from loraplex.platform.supervisor import WorkerRefusedStart

    told = (EngineError, DemoModelMissing, PortInUse, DataDirInUse, WorkerRefusedStart, OSError)
    try:
        with reporting_errors(status):
            yield
    except told as error:
        raise failure(str(error), status) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _tell_end(num_unsettled: int) -> None:
    """Say that all is in the ledger, or end with an error."""
    if num_unsettled:
        raise failure(
            f"stopped; requests that were not settled: {num_unsettled}; their usage stands in the "
            'log, in the lines "usage is not in the ledger"'
        )
    typer.echo("Stopped; all requests were settled.", err=True)


def _print_url(url: str) -> None:
    typer.echo(f"Gateway on {url}", err=True)


def _print_json(ready: "Ready") -> None:
    typer.echo(ready.as_json())


def _print_welcome(ready: "Ready") -> None:
    from loraplex.platform.welcome import welcome

    typer.echo(welcome(ready))
