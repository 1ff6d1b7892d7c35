"""A worker in a process of its own: real stream, scheduler and journal over a model that says
numbers, a few each second. Which number comes next, whoever knows the prompt can tell."""

import threading
import time
from pathlib import Path

from tests.engine.simulated_worker import SimulatedWorker
from tests.platform.tiny_model import model_info

from loraplex.engine.claim import claimed
from loraplex.engine.frames import Security, UnixAddress
from loraplex.engine.plan import StepOutput, StepPlan

PACE_S = 0.004
MODEL = model_info(vocab_size=1000, max_model_len=4096)


async def serve(socket: Path, journal: Path, epoch: str) -> None:
    """Serve until the process is killed."""
    address = UnixAddress(socket)
    with claimed(address):
        worker = SimulatedWorker(Security(), epoch, MODEL, journal)
        run = worker.runner.run

        def paced(plan: StepPlan) -> StepOutput:
            if plan.chunks:
                time.sleep(PACE_S)
            return run(plan)

        worker.runner.run = paced  # type: ignore[method-assign]  # wrong on purpose, or replaced for the test
        worker.runner.open()
        await worker.server.start(address)
        threading.Thread(target=worker.loop.run, daemon=True).start()
        await worker.journal.keep_synced()
