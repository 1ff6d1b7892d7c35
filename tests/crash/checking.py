"""Whether what was delivered, what the journal has and what was charged are the same."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.crash.site import PRICE, Site
from tests.engine.simulated_runner import expected_output
from tests.platform.tiny_model import tokenizer_json
from tokenizers import Tokenizer

from loraplex.engine.journal_format import output_digest
from loraplex.engine.journal_log import Reading
from loraplex.engine.journal_protocol import JournalEntry
from loraplex.engine.seeds import choice_seed
from loraplex.tenants.prices import cost_pico

COLUMNS = (
    *(
        "request_id",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "finish_reason",
        "billable",
    ),
    *("source", "cost_pico", "output_digest"),
)
NO_EOS = -1
LATE = 4.0
"""Seconds before a round in which a request of it cannot have been accepted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a client sent."""

    prompt: str
    max_tokens: int
    seed: int
    file: Path
    leaves: bool

    @property
    def prompt_ids(self) -> list[int]:
        return tokenizer().encode(self.prompt).ids

    def expected(self) -> list[int]:
        """The output, token by token."""
        seed = choice_seed(self.seed, 0) % 2**64
        return expected_output(self.prompt_ids, None, self.max_tokens, NO_EOS, seed)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a client has of an answer."""

    status: int
    """0 if not even that came."""
    request_id: str
    ids: list[int]
    is_complete: bool
    """True if the answer came to its regular end."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the ledger."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    billable: bool
    source: str
    cost_pico: int
    output_digest: str | None


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(tokenizer_json())


def delivered(data: bytes) -> Delivered:
    """Read an answer as far as it came: whole events alone count."""
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return Delivered(0, "", [], is_complete=False)
    status = int(head.split()[1])
    lines = (line.partition(":") for line in head.decode().split("\r\n")[1:])
    headers = {name.lower(): value.strip() for name, _, value in lines}
    request_id = headers.get("x-request-id", "")
    if status != 200:
        return Delivered(status, request_id, [], is_complete=False)
    text, is_complete = "", False
    *events, _ = _dechunked(body).decode(errors="replace").split("\n\n")
    for event in events:
        said = event.removeprefix("data: ")
        if said == "[DONE]":
            is_complete = True
        elif said.startswith("{") and "choices" in (chunk := json.loads(said)):
            text += "".join(choice["text"] for choice in chunk["choices"])
    return Delivered(status, request_id, [int(n) for n in text.split()], is_complete)


def _dechunked(body: bytes) -> bytes:
    data = b""
    while body:
        size, separator, rest = body.partition(b"\r\n")
        if not separator:
            break
        length = int(size, 16)
        data += rest[:length]
        body = rest[length + 2 :]
    return data


def check_round(site: Site, asked: Sequence[Asked], since_s: float) -> Counter[str]:
    """Compare all that is known of the round's requests; return how they ended."""
    rows = {row[0]: Row(*row) for row in site.rows(f"SELECT {', '.join(COLUMNS)} FROM usage")}
    got = {each.file: delivered(each.file.read_bytes()) for each in asked}
    ids = [answer.request_id for answer in got.values() if answer.request_id]
    assert len(ids) == len(set(ids))
    entries = Reading(site.journal, since_s).find({*ids, *rows}, since_s - LATE)
    journal = {entry.request_id: entry for entry in entries}
    ends: Counter[str] = Counter()
    for each in asked:
        answer = got[each.file]
        row = rows.get(answer.request_id)
        ends[_check(each, answer, row, journal.get(answer.request_id))] += 1
    return ends


def check_ledger(site: Site, answered: set[str]) -> None:
    """No request is billed of which no client has a byte."""
    billed = site.rows("SELECT request_id FROM usage WHERE billable")
    assert {request_id for (request_id,) in billed} <= answered


def _check(asked: Asked, answer: Delivered, row: Row | None, entry: JournalEntry | None) -> str:
    known = (asked, answer, row, entry)
    assert answer.ids == asked.expected()[: len(answer.ids)], ("a token twice, or lost", known)
    if row is None:
        assert not answer.ids, ("delivered and not recorded", known)
        assert not answer.is_complete, known
        return f"refused {answer.status}" if answer.status else "nothing came"
    assert row.prompt_tokens in {0, len(asked.prompt_ids)}, known
    if row.source != "estimated":
        assert row.completion_tokens >= len(answer.ids), ("delivered and not recorded", known)
    if entry is not None:
        assert entry.usage.completion_tokens >= row.completion_tokens, known
        if row.output_digest is not None and entry.output_digest:
            assert row.output_digest == entry.output_digest.hex(), known
    if not row.billable:
        assert row.cost_pico == 0, known
        assert not answer.is_complete, ("delivered whole and not billed", known)
        return f"free, {row.source}"
    return _check_billed(asked, answer, row, known)


def _check_billed(asked: Asked, answer: Delivered, row: Row, known: Any) -> str:
    assert row.source == "measured", known
    tokens = (row.prompt_tokens, row.cached_tokens, row.completion_tokens)
    assert row.cost_pico == cost_pico(PRICE, *tokens), known
    if asked.leaves:
        assert row.completion_tokens >= len(answer.ids), known
        return "client left"
    assert row.completion_tokens == len(answer.ids), ("billed and not delivered", known)
    if row.output_digest is not None:
        assert row.output_digest == output_digest([answer.ids]).hex(), known
    return "complete" if answer.is_complete else f"billed, {row.finish_reason}"
