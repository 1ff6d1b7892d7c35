"""Every demo task; one more is its own file and a name here."""

from typing import Final

from loraplex.platform.demo.tasks.acme_support import SUPPORT
from loraplex.platform.demo.tasks.acme_triage import TRIAGE
from loraplex.platform.demo.tasks.globex_extract import EXTRACT
from loraplex.platform.demo.tasks.globex_sql import SQL
from loraplex.platform.demo.tasks.initech_calendar import CALENDAR
from loraplex.platform.demo.tasks.initech_commit import COMMIT
from loraplex.platform.demo.tasks.task import Task

TASKS: Final[tuple[Task, ...]] = (SUPPORT, TRIAGE, EXTRACT, SQL, CALENDAR, COMMIT)
