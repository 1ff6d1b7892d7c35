"""Graphs of small steps of decodes, recorded before a worker serves on a GPU."""

import logging
import time
from collections.abc import Sequence

import torch

from loraplex.engine.decode_graphs import BUCKETS, CudaRecorder, Record
from loraplex.engine.runner import ModelRunner

_log = logging.getLogger(__name__)
_MIB = 1 << 20


def record_graphs(runner: ModelRunner) -> None:
    """Record them, and tell how far it is and what memory they take; on a CPU there are none."""
    if runner.model.device.type != "cuda":
        return
    started, before = time.monotonic(), torch.cuda.memory_reserved()
    use_recorded(runner, CudaRecorder())
    taken_mib = (torch.cuda.memory_reserved() - before) / _MIB
    _log.info("graphs take %.0f MiB and %.1f s", taken_mib, time.monotonic() - started)


def use_recorded(runner: ModelRunner, record: Record, buckets: Sequence[int] = BUCKETS) -> None:
    """Record graphs of up to so many rows each, and use them; where one cannot be recorded, those
    that were until then, and steps that fit into none run without."""
    try:
        for graphs in runner.record_graphs(record, buckets):
            runner.use_graphs(graphs)
            _log.info("recorded a graph of up to %d decodes", graphs.base[0].inputs.num_rows)
    except RuntimeError:
        _log.exception("a graph could not be recorded; steps run by those that were, or without")
