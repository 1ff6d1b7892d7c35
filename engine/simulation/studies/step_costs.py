"""Errors of the cost model, on profiles of real devices."""

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

import numpy as np

from loraplex.engine.simulation.cost_trial import Trial, try_model
from loraplex.engine.simulation.devices import read_device
from loraplex.engine.simulation.studies.study import Options, draw, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def step_costs(options: Options) -> None:
    """PROFILE…: errors in percent at 5 % and 2 % noise, means over the seeds."""
    names = [field.name for field in fields(Trial)]
    shown: dict[str, dict[str, float]] = {}
    for noise in (0.05, 0.02):
        rows = []
        for path in options.paths:
            times = read_device(str(path)).times
            trials = [astuple(try_model(times, noise, seed)) for seed in range(options.seeds)]
            means = np.mean(trials, axis=0).tolist()
            shown[path.stem.removeprefix("vidur_").removesuffix("_mlp")] = dict(
                zip(names, means, strict=True)
            )
            rows.append((path.stem, *(f"{mean:.1f}" for mean in means)))
        print_table((f"noise {noise:.0%}", *names), rows)
    draw(options.out, "cost-model", lambda axes: _draw(axes, shown))


def _draw(axes: Sequence["Axes"], shown: dict[str, dict[str, float]]) -> None:
    labels = {
        "p50": "P50",
        "p95": "P95",
        "noise_p95": "noise alone, P95",
        "drift_p95": "P95, from 200 steps after a drift",
    }
    width = 0.8 / len(labels)
    places = np.arange(len(shown))
    for number, (name, label) in enumerate(labels.items()):
        values = [each[name] for each in shown.values()]
        axes[0].bar(places + number * width, values, width, label=label)
    axes[0].set_xticks(places + 0.3, [name.replace("_", "\n", 1) for name in shown], fontsize=7)
    axes[0].set_ylabel("relative error at 2 % noise, percent")
    axes[0].legend(frameon=False, fontsize=7)
