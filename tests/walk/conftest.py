from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.walk.served import Served, serving


@pytest.fixture(scope="session")
def served(demo_data_dir: Path) -> Iterator[Served]:
    """The demo, served once for all tests that change nothing of it; they may add to it. What is
    uploaded is compared with PEFT, as users' adapters are."""
    with serving(demo_data_dir, environment={"LORAPLEX_SELF_TEST": "auto"}) as served:
        yield served
