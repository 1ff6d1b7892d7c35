"""Whatever dies, and whenever: what was delivered, journalled and charged is the same, once."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.crash import rounds
from tests.crash.rounds import ALL, Rounds, num_rounds
from tests.crash.site import Site, running_site


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running


def test_nothing_is_lost_doubled_or_left_open_whatever_dies(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CRASH_SEED", "1"))
    crashes, reached, ends = Rounds(site, seed), Counter[str](), Counter[str]()
    for number in range(num_rounds()):
        outcome = crashes.run(*(ALL[each % len(ALL)] for each in (number, number + 1)))
        reached[outcome.scenario] += outcome.died
        ends += outcome.ends
        with capsys.disabled():
            print(f"{number + 1:4} {outcome.scenario}: {dict(outcome.ends)}", flush=True)  # noqa: T201  told while it runs
    assert site.verified()["drift"] == 0
    assert ends["complete"], "some requests must come through"
    missed = [name for name, number in reached.items() if not number]
    assert not missed, "each point must be reached"
    assert rounds.NUM_REQUESTS * num_rounds() == ends.total()
