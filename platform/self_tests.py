"""Tests of adapters before they are published: the worker makes them, the gateway judges."""

import msgspec

from loraplex.adapters.errors import CheckpointInvalid, Problem
from loraplex.adapters.registry.errors import AdapterTooLarge
from loraplex.engine.errors import AdapterOverCap
from loraplex.engine.protocol import SelfTest
from loraplex.platform.services import Resources
from loraplex.tenants import directory


async def tested(resources: Resources, tenant_id: str, digest: str) -> str | None:
    """Have a stored adapter tested as the settings say; return what is kept of it, as JSON, or None
    if no test is to be made.

    Raises CheckpointInvalid with the numbers if the adapter is not served as it should be,
    AdapterTooLarge if it alone exceeds what the tenant may hold in memory, and EngineUnavailable
    where no worker can tell.
    """
    mode = resources.settings.self_test
    if mode == "off":
        return None
    async with resources.database.reader() as session:
        tenant = await directory.get(session, tenant_id)
    try:
        report = await resources.engine.verify(
            tenant_id, digest, tenant.weight, may_use_peft=mode == "auto"
        )
    except AdapterOverCap as error:
        text = str(error)
        raise AdapterTooLarge(f"{text[0].upper()}{text[1:]}.") from None
    if not report.passed:
        raise CheckpointInvalid((_problem(report),))
    return msgspec.json.encode(report).decode()


def _problem(report: SelfTest) -> Problem:
    by = "PEFT" if report.method == "peft" else "the engine's plain computation"
    difference = (
        f"log-probabilities differ by up to {report.max_abs_logprob_diff:.3g} where "
        f"{report.tolerance:.3g} is allowed; "
        if report.num_compared
        else ""
    )
    return Problem(
        "self_test",
        "",
        f"what is served is not what {by} makes of it: {difference}{report.detail}; tell the "
        "operator, for the adapter itself may be sound",
    )
