"""Rounds of crashes: what dies when, while clients are served, and what must hold afterwards."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.crash import points
from tests.crash.checking import Asked, check_ledger, check_round, delivered
from tests.crash.site import PATIENCE_S, Site

NUM_REQUESTS = 8
MAX_TOKENS = 60
LONGEST_WAIT_S = 0.4
"""About as long as a round's requests take, once they are sent."""
CLIENT = Path(__file__).parent / "client.py"
STORES = ("redis", "postgres")
RANDOM = ("gateway", "worker", "gateway and worker", *STORES, "gateway told to end", "client")
NAMED = (*points.GATEWAY, *points.WORKER)
ALL = tuple(scenario for pair in zip(NAMED, RANDOM * len(NAMED), strict=False) for scenario in pair)
"""Named points and random moments by turns."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended."""

    scenario: str
    ends: Counter[str]
    died: bool
    """True if what was to die at a point came there."""


class Rounds:
    """Rounds in one deployment."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._random = random.Random(seed)
        self._number = 0
        self._answered: set[str] = set()

    def run(self, scenario: str, following: str) -> Outcome:
        """One round, and all that the following one needs.

        Raises AssertionError with all that is known of the first request that was not delivered,
        recorded and billed as it must.
        """
        site, since_s = self._site, time.time()
        self._number += 1
        is_named = scenario in NAMED
        if self._number == 1:
            self._mend(scenario)
        victim = site.gateway(0).child if scenario in points.GATEWAY else site.worker
        assert victim is not None
        asked = self._requests(leaves=scenario == "client")
        client = self._client(asked)
        assert client.stdout is not None
        assert client.stdout.readline() == b"sent\n"
        if not is_named:
            time.sleep(self._random.uniform(0, LONGEST_WAIT_S))
            self._kill(scenario)
        assert client.wait(PATIENCE_S) == 0
        client.stdout.close()
        died = not is_named or victim.is_over()
        self._restart(scenario)
        if scenario in STORES:
            # Nothing else dies in such a round: gateways write what waits in them before one
            # of them is started anew.
            site.settled()
        # A gateway that starts compares budgets, as one does that is started again.
        self._mend(following)
        site.settled()
        ends = check_round(site, asked, since_s)
        self._answered |= {delivered(each.file.read_bytes()).request_id for each in asked}
        check_ledger(site, self._answered)
        site.verified()
        return Outcome(scenario, ends, died)

    def _mend(self, scenario: str) -> None:
        """Start what does not run, and let what dies in a round at a point know it."""
        if scenario in points.ALL:
            self._site.mend(scenario, self._random.randint(1, points.ALL[scenario].most))
        else:
            self._site.mend()

    def _requests(self, *, leaves: bool) -> list[Asked]:
        folder = self._site.folder / f"round-{self._number}"
        folder.mkdir()
        return [
            Asked(
                prompt=f"round {self._number} request {number}",
                max_tokens=self._random.randint(1, MAX_TOKENS),
                seed=self._random.randrange(2**31),
                file=folder / str(number),
                leaves=leaves and number % 2 == 0,
            )
            for number in range(NUM_REQUESTS)
        ]

    def _client(self, asked: list[Asked]) -> "subprocess.Popen[bytes]":
        """Send three quarters of the requests to the first gateway, the others to the second."""
        requests = [
            {
                "port": self._site.gateway(0 if number % 4 else 1).port,
                "key": self._site.key,
                "file": str(each.file),
                "leave_after": self._random.randint(1, 6000) if each.leaves else None,
                "body": {
                    "model": "tiny",
                    "prompt": each.prompt,
                    "max_tokens": each.max_tokens,
                    "seed": each.seed,
                    "stream": True,
                    "ignore_eos": True,  # which has no text
                },
            }
            for number, each in enumerate(asked)
        ]
        for each in asked:
            each.file.touch()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        client = subprocess.Popen([sys.executable, "-I", CLIENT], **pipes)
        assert client.stdin is not None
        client.stdin.write(json.dumps(requests).encode())
        client.stdin.close()
        return client

    def _kill(self, scenario: str) -> None:
        site = self._site
        assert site.worker is not None
        if scenario == "gateway told to end":
            site.gateway(0).child.end(signal.SIGTERM)
        if scenario in {"gateway", "gateway and worker"}:
            site.gateway(0).child.end()
        if scenario in {"worker", "gateway and worker"}:
            site.worker.end()
        if scenario == "redis":
            site.valkey.kill()
        if scenario == "postgres":
            site.postgres.kill()

    def _restart(self, scenario: str) -> None:
        if scenario == "redis":
            self._site.valkey.start()
        if scenario == "postgres":
            self._site.postgres.start()


def num_rounds() -> int:
    """How many are wanted."""
    return int(os.environ.get("CRASH_ROUNDS", "20"))
