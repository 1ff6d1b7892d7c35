"""How `loraplex worker` ends: a start that cannot work differs from a crash while it served."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import torch
from tests.engine import build
from tests.engine.simulated_worker import MODEL, SimulatedWorker
from typer.testing import CliRunner

from loraplex.adapters.sizes import StoredSizes
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.errors import EngineCrashed, MemoryTooSmall
from loraplex.engine.frames import Security
from loraplex.engine.intake import Intake
from loraplex.engine.saved_costs import CostFile
from loraplex.platform import log, worker
from loraplex.platform.cli.main import app
from loraplex.platform.supervisor import START_REFUSED
from loraplex.platform.worker_costs import KeptCosts


@pytest.fixture(autouse=True)
def _this_process_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "configure_logging", lambda level: None)
    monkeypatch.setenv("LORAPLEX_THREADS", str(torch.get_num_threads()))


def fail(error: Exception) -> object:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


@pytest.mark.parametrize("error", [OSError("no such file"), MemoryTooSmall("too small")])
def test_a_start_that_cannot_work_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(worker, "_load", fail(error))
    result = CliRunner().invoke(app, ["worker", "--data-dir", str(tmp_path)])
    assert result.exit_code == START_REFUSED
    assert result.stderr == f"error: {error}\n"


@pytest.mark.parametrize("error", [OSError("the disk is gone"), MemoryTooSmall("too small")])
def test_a_crash_while_it_serves_keeps_its_traceback_and_is_no_refused_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def compose(*_: object) -> worker.Worker:
        simulated = SimulatedWorker(Security(), "epoch-1", MODEL, tmp_path / "journal")
        monkeypatch.setattr(simulated.engine, "step", fail(error))
        model = CostModel(Subject("tiny", "none"))
        costs = KeptCosts(model, CostFile(tmp_path / "costs", model.subject), 0.0)
        self_tests = AsyncMock()
        intake = Intake(simulated.mailbox, StoredSizes(build.sizes))
        return worker.Worker(
            simulated.loop,
            intake,
            simulated.server,
            self_tests,
            simulated.transfers,
            costs,
            simulated.journal,
            assist=None,
        )

    model = SimpleNamespace(config=SimpleNamespace(name="tiny"))
    monkeypatch.setattr(worker, "_load", lambda settings: model)
    monkeypatch.setattr(worker, "_compose", compose)
    result = CliRunner().invoke(app, ["worker", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert isinstance(result.exception, EngineCrashed)
    assert result.exception.__cause__ is error
