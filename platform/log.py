"""Logging: one JSON object a line on standard error, with the id of the request it belongs to."""

import asyncio
import json
import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

from starlette.types import Scope

_TALKATIVE = (
    *("alembic", "asyncio", "aiosqlite", "sqlalchemy", "psycopg", "uvicorn", "httpx", "httpcore"),
    *("httpx2", "httpcore2", "authlib"),
)

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Set by the outermost middleware, so that every line of a request carries it."""


@dataclass(slots=True)
class AccessLine:
    """What the access log will say of a request; routes add fields of their own."""

    request_id: str
    started_s: float
    """Monotonic."""
    fields: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(scope: Scope) -> "AccessLine":
        """The line of the request of this scope."""
        line = scope["loraplex.line"]
        assert isinstance(line, AccessLine)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per record; `extra={"fields": {…}}` adds fields of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = REQUEST_ID.get()
        if request_id is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info and not _is_cancel(record.exc_info[1]):
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _is_cancel(error: BaseException | None) -> bool:
    """True for what the server ended by itself as it ends: where that happened tells nothing."""
    return isinstance(error, asyncio.CancelledError)


def configure_logging(level: str, stream: TextIO = sys.stderr) -> None:
    """Send all records of this process, at `level` and above, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Libraries' debug lines hold what users typed and statements' parameters.
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
