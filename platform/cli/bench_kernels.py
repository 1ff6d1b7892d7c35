"""`loraplex bench kernels`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loraplex.platform.cli.bench_options import numbers, require_matplotlib, settings_with
from loraplex.platform.cli.context import DataDir, failure, reporting_errors
from loraplex.platform.cli.output import print_json, print_titled_tables, show_progress

if TYPE_CHECKING:
    from loraplex.platform.bench.kernels.case import Op
    from loraplex.platform.bench.kernels.plan import KernelPlan, KernelsResult

OPS: tuple["Op", ...] = ("lora", "dense", "attention", "elementwise")
_QUICK_LAYERS = 2


Ops = Annotated[str, typer.Option(help="Kernels, by commas.")]
Dtype = Annotated[Literal["both", "float32", "bfloat16"], typer.Option(help="Of weights and rows.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of the arithmetic. Default: cores − 1.")
]
Rows = Annotated[str, typer.Option(help="Rows of dense layers and elementwise ops, by commas.")]
ModelDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a model whose shapes are taken. Default: the demo's.", show_default=False
    ),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="2 layers, fewer and shorter cases, to try it."),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=60,
        help="For each contender of a case. Default: 1, or 0.05 with --quick.",
        show_default=False,
    ),
]
OutDir = Annotated[
    Path | None,
    typer.Option(help="Folder to write kernels.md and kernels.png to.", show_default=False),
]


def kernels(
    ops: Ops = "lora,dense,attention,elementwise",
    dtype: Dtype = "both",
    threads: Threads = None,
    rows: Rows = "1,4,8,16,64,1024",
    model: ModelDir = None,
    quick: Quick = False,
    seconds: Seconds = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and rows.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: OutDir = None,
    data_dir: DataDir = None,
) -> None:
    """Time each kernel beside others' ways of computing it and beside what the machine can do.

    Ends with status 1 if a contender computes wrong; it is not timed then.
    """
    from loraplex.platform.settings import available_cores, prepare_worker_environment

    sizes, wanted = numbers(rows, "--rows", most=65_536), _ops(ops)
    with reporting_errors():
        settings = settings_with(data_dir=data_dir, threads=threads)
        if out is not None:
            require_matplotlib()
        prepare_worker_environment()
        from loraplex.platform.bench.errors import BenchRefused
        from loraplex.platform.bench.kernels.run import measure_kernels

        try:
            plan = _plan(
                ops=wanted,
                dtype=dtype,
                rows=sizes,
                model=model,
                seconds=(0.05 if quick else 1.0) if seconds is None else seconds,
                seed=seed,
                kernels_dir=settings.compiled_dir,
                quick=quick,
            )
        except BenchRefused as error:
            raise failure(str(error)) from None
        num_threads = settings.threads or max(1, available_cores() - 1)
        result = measure_kernels(plan, num_threads, show_progress)
    typer.echo("", err=True)
    _show(result, as_json=as_json)
    if out is not None:
        _write(result, out)
    _fail_if_wrong(result)


def _plan(
    *,
    ops: tuple["Op", ...],
    dtype: str,
    rows: tuple[int, ...],
    model: Path | None,
    seconds: float,
    seed: int,
    kernels_dir: Path,
    quick: bool,
) -> "KernelPlan":
    import torch

    from loraplex.platform.bench.kernels.plan import KernelPlan
    from loraplex.platform.bench.kernels.shape import KernelShape

    shape = KernelShape() if model is None else KernelShape.of_config(model)
    dtypes = ("float32", "bfloat16") if dtype == "both" else (dtype,)
    return KernelPlan(
        shape=shape,
        ops=ops,
        dtypes=tuple(getattr(torch, name) for name in dtypes),
        rows=rows,
        contexts=(128, 1024) if quick else (128, 1024, 8192),
        prompts=(256,) if quick else (256, 2048),
        prefill=(4, 64) if quick else (16, 256),
        layers=min(shape.num_layers, _QUICK_LAYERS) if quick else shape.num_layers,
        seconds=seconds,
        seed=seed,
        is_quick=quick,
        kernels_dir=kernels_dir,
    )


def _ops(text: str) -> tuple["Op", ...]:
    wanted = [part.strip() for part in text.split(",")]
    found = tuple(op for op in OPS if op in wanted)
    if len(found) < len(wanted):
        raise typer.BadParameter(
            f"{text!r} is not a list of different ones of {', '.join(OPS)}", param_hint="--ops"
        )
    return found


def _show(result: "KernelsResult", *, as_json: bool) -> None:
    from loraplex.platform.bench.kernels import report

    if as_json:
        print_json([report.as_json(result)])
        return
    typer.echo(report.summary(result))
    print_titled_tables(report.tables(result), empty="Nothing was measured.")


def _write(result: "KernelsResult", folder: Path) -> None:
    from loraplex.platform.bench.kernels.chart import draw_chart
    from loraplex.platform.bench.kernels.report import as_markdown

    folder.mkdir(parents=True, exist_ok=True)
    draw_chart(result, folder / "kernels.png")
    (folder / "kernels.md").write_text(as_markdown(result, "kernels.png"))
    typer.echo(f"wrote {folder / 'kernels.md'} and {folder / 'kernels.png'}", err=True)


def _fail_if_wrong(result: "KernelsResult") -> None:
    wrong = [
        f"{case.op}, {case.dtype}, {case.name}: {each.name} {each.reason}"
        for case in result.cases
        for each in case.wrong
    ]
    if wrong:
        raise failure("\n".join(wrong))
