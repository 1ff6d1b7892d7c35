"""The part of a worker that tests adapters at their registration."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from loraplex.engine.mailbox import Inbox, Mailbox
from loraplex.engine.model import LoadedModel
from loraplex.engine.model_files import num_weights
from loraplex.engine.self_test.dense import DenseReference
from loraplex.engine.self_test.metrics import SelfTestMetrics
from loraplex.engine.self_test.peft_oracle import PeftOracle, PeftSubject
from loraplex.engine.self_test.served import ServedPath
from loraplex.engine.self_test.verifier import VerifiedModel, Verifier
from loraplex.engine.stored_adapters import StoredAdapters
from loraplex.platform.settings import available_cores

CORES_PER_THREAD = 4
"""Of the machine's cores, PEFT's process computes on one in so many, and on one at least."""


@dataclass(frozen=True, slots=True)
class SelfTests:
    """What tests adapters, with the parts that the worker drives."""

    verifier: Verifier
    served: ServedPath
    peft: PeftOracle

    async def close(self) -> None:
        """End PEFT's process."""
        await self.peft.close()


def compose_self_tests(
    model: LoadedModel,
    adapters: StoredAdapters,
    mailbox: Mailbox,
    inbox: Inbox,
    registry: CollectorRegistry,
) -> SelfTests:
    """Put them together over a worker's engine. Nothing is started.

    Requests go to `inbox`, other work between steps to `mailbox`."""
    served = ServedPath(inbox.put)
    peft = PeftOracle(
        PeftSubject(
            model_folder=model.path,
            dtype=model.config.dtype,
            model_bytes=num_weights(model.path) * model.dtype.itemsize,
            threads=max(1, available_cores() // CORES_PER_THREAD),
        )
    )

    verifier = Verifier(
        VerifiedModel(
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            dtype=model.config.dtype,
            load=adapters.plain,
            folder=adapters.store.open,
        ),
        served,
        DenseReference(model, mailbox.put_aside),
        peft,
        SelfTestMetrics(registry).observe,
    )
    return SelfTests(verifier, served, peft)
