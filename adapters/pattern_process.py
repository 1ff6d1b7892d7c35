"""Patterns that only a backtracking matcher can do, in a process that is ended in time.

The process is Python without its environment and site-packages; it gets no file and no network
address from us, bounds its own processor time and memory, and is killed when the wait is over.
"""

import json
import subprocess
import sys
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from loraplex.adapters.errors import PatternTimeout

TIMEOUT_S = 10.0
"""Of the wait; a busy machine may take a while to start a process."""
CPU_S = 2
"""Of the processor, for all patterns of an adapter together."""
_MEMORY_BYTES = 512 * 1024**2

_CHILD = """
import json, re, resource, sys
cpu, memory = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
task = json.load(sys.stdin)
for how, expression in task["queries"]:
    match = getattr(re.compile(expression), how)
    found = {}
    for number, path in enumerate(task["paths"]):
        at = match(path)
        if at is not None:
            found[number] = at.groupdict().get("idx") or ""
    print(json.dumps(found), flush=True)
"""


class Kind(Enum):
    """What PEFT makes of a pattern; it runs `re.fullmatch` on the first, `re.match` on others."""

    FULL = "{}"
    SUFFIX = r"(.*\.)?({})$"
    LAYERS = r"(?:^|.*?\.){}\.(?P<idx>\d+)\."

    def expression(self, pattern: str) -> str:
        """The whole expression."""
        return self.value.replace("{}", pattern, 1)


class Query(NamedTuple):
    """A pattern to be matched against all paths."""

    kind: Kind
    pattern: str


def solve(queries: tuple[Query, ...], paths: Collection[str]) -> dict[Query, dict[str, str]]:
    """Match each query against all paths: the paths that match, with the layer's number if any.

    Raises:
        PatternTimeout: names the query that did not end in time.
    """
    if not queries:
        return {}
    order = list(paths)
    expressions = [
        ("fullmatch" if query.kind is Kind.FULL else "match", query.kind.expression(query.pattern))
        for query in queries
    ]
    lines = _run(json.dumps({"queries": expressions, "paths": order}))
    if len(lines) < len(queries):
        raise PatternTimeout(queries[len(lines)].pattern)
    return {
        query: {order[int(number)]: layer for number, layer in json.loads(line).items()}
        for query, line in zip(queries, lines, strict=True)
    }


def _run(task: str) -> list[bytes]:
    """Whole lines that the process wrote, however it ended."""
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", _CHILD]
    limits = [str(CPU_S), str(_MEMORY_BYTES)]
    try:
        done = subprocess.run(  # noqa: S603  our own code; the patterns are data
            [*command, *limits],
            input=task.encode(),
            capture_output=True,
            env={},
            timeout=TIMEOUT_S,
            check=False,
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    return output.split(b"\n")[:-1]
