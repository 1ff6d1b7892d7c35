"""A worker's journal that has in it what a test put there."""

from collections.abc import Sequence

from loraplex.engine.journal_protocol import (
    JournalEntry,
    JournalHour,
    JournalReport,
    JournalTotals,
)


class ScriptedJournal:
    """The journal of the scripted engine and of the scripted worker: what the test put there."""

    def __init__(self) -> None:
        self.entries: dict[str, JournalEntry] = {}
        self.hours: list[JournalHour] = []
        self.since_s = 0.0
        self.asked_from_s: list[float] = []

    def report(
        self, query_id: int, request_ids: Sequence[str], accepted_from_s: float
    ) -> JournalReport:
        self.asked_from_s.append(accepted_from_s)
        known = tuple(self.entries[asked] for asked in request_ids if asked in self.entries)
        return JournalReport(query_id=query_id, entries=known, since_s=self.since_s)

    def totals(self, query_id: int, from_s: float, until_s: float) -> JournalTotals:
        hours = tuple(hour for hour in self.hours if from_s <= hour.start_s < until_s)
        return JournalTotals(query_id=query_id, hours=hours, since_s=self.since_s)
