"""A page about a run, that opens without a network; beside it its pictures and all requests."""

import csv
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, fields
from html import escape
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loraplex.engine.simulation.errors import SimulationError
from loraplex.engine.simulation.metrics import Metrics, WindowedService
from loraplex.engine.simulation.records import Record, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN_TENANTS = 8
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: left }
td { font-variant-numeric: tabular-nums } tr:nth-child(even) { background: #f2f2f2 }
img { max-width: 100% }
"""


def prepare_report(folder: Path) -> None:
    """Find out, before anything is simulated, whether a report can be written there.

    Raises SimulationError if matplotlib is not installed, or the folder cannot be made.
    """
    if find_spec("matplotlib") is None:
        raise SimulationError("a report needs matplotlib: pip install 'loraplex[bench]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SimulationError(f"a report cannot be written into {folder}: {error}") from error


def write_report(folder: Path, title: str, run: Run, metrics: Metrics) -> Path:
    """Write `report.html`, three PNGs and `requests.csv` into a folder; return the page's path.

    `prepare_report` comes before.
    """
    pictures = _pictures(run)
    for name, data in pictures.items():
        (folder / f"{name}.png").write_bytes(data)
    with (folder / "requests.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Record)])
        writer.writeheader()
        writer.writerows(asdict(record) for record in run.records)
    page = folder / "report.html"
    page.write_text(_page(title, metrics, pictures), encoding="utf-8")
    return page


def _page(title: str, metrics: Metrics, pictures: Mapping[str, bytes]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(_number(value))}</td></tr>"
        for name, value in asdict(metrics).items()
    )
    images = "".join(
        f'<h2>{escape(_TITLES[name])}</h2><img alt="{escape(_TITLES[name])}" '
        f'src="data:image/png;base64,{b64encode(data).decode()}">'
        for name, data in pictures.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><table>{rows}</table>{images}</html>\n"
    )


def _number(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "–" if value is None else f"{value:,}"


_TITLES: Mapping[str, str] = {
    "service": "Service of the tenants that asked for most, tokens per second",
    "ttft": "Time to first token, share of requests",
    "tenants": "Time to first token by tenant, median and 99th percentile",
}


def _pictures(run: Run) -> dict[str, bytes]:
    """PNGs by name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  an extra
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    records = [record for record in run.records if record.first_token_s is not None]
    by_tenant = _by_tenant(records)
    draw = {
        "service": lambda axes: _draw_service(axes, records, by_tenant, run.last_arrival_s),
        "ttft": lambda axes: _draw_ttft(axes, records),
        "tenants": lambda axes: _draw_tenants(axes, by_tenant),
    }
    pictures = {}
    for name, picture in draw.items():
        figure = Figure(figsize=(9, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        picture(axes)  # type: ignore[no-untyped-call]  # lambdas have no types
        axes.spines[["top", "right"]].set_visible(False)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        pictures[name] = buffer.getvalue()
    return pictures


def _by_tenant(records: list[Record]) -> dict[str, list[Record]]:
    """Records of each tenant, the one that asked for most first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.tenant, []).append(record)
    work = {tenant: sum(r.service for r in own) for tenant, own in groups.items()}
    return {tenant: groups[tenant] for tenant in sorted(groups, key=lambda t: (-work[t], t))}


def _draw_service(
    axes: "Axes", records: list[Record], by_tenant: Mapping[str, list[Record]], until_s: float
) -> None:
    service = WindowedService(records, until_s)
    served = np.array([service.served(at - 30, at + 30) for at in service.middles])
    for tenant in list(by_tenant)[:_SHOWN_TENANTS]:
        axes.plot(service.middles, served[:, service.tenants.index(tenant)], label=tenant)
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=2)


def _draw_ttft(axes: "Axes", records: list[Record]) -> None:
    ttft = np.sort([record.ttft_s or 0.0 for record in records])
    axes.step(ttft, (1 + np.arange(len(ttft))) / len(ttft), where="post")
    axes.set_xlabel("seconds")
    axes.set_ylim(0, 1)


def _draw_tenants(axes: "Axes", by_tenant: Mapping[str, list[Record]]) -> None:
    ttft = {tenant: [r.ttft_s or 0.0 for r in own] for tenant, own in by_tenant.items()}
    places = np.arange(len(ttft))
    axes.bar(places, [np.percentile(own, 99) for own in ttft.values()], label="99th percentile")
    axes.bar(places, [np.median(own) for own in ttft.values()], label="median")
    axes.set_xticks(places, list(ttft), rotation=90, fontsize=7)
    axes.set_ylabel("seconds")
    axes.legend(frameon=False)
