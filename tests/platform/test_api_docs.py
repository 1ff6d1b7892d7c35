"""The documentation of the API says what the code does."""

import json
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.platform.conftest import Gateway

from loraplex.platform.api.admin.admin import router
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.api.completion_schema import CompletionBody
from loraplex.platform.api.fields import (
    NO_OP_FIELDS,
    STREAM_NO_OP_FIELDS,
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_MESSAGE_FIELDS,
)
from loraplex.platform.billing_export import COLUMNS
from loraplex.platform.error_replies import RULES

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "api.md").read_text()


def rows(heading: str, document: str = DOCUMENT) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = document.split(f"# {heading}\n")[1].split("\n#", maxsplit=1)[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_fields_without_effect_are_the_documented_ones() -> None:
    stream = {f"stream_options.{name}": why for name, why in STREAM_NO_OP_FIELDS.items()}
    documented = {field.strip("`"): why for field, why in rows("Fields without effect")}
    assert documented == {**NO_OP_FIELDS, **stream}


def test_refused_fields_and_the_values_they_may_have_are_the_documented_ones() -> None:
    documented = {
        field.strip("`"): [json.loads(value) for value in re.findall(r"`(.*?)`", taken)]
        for field, taken in rows("Fields that are refused")
    }
    inside = {f"messages[].{name}": v for name, v in UNSUPPORTED_MESSAGE_FIELDS.items()}
    expected = {**UNSUPPORTED_FIELDS, **inside}
    assert documented == {field: list(values) for field, values in expected.items()}


def test_supported_fields_are_the_documented_ones() -> None:
    section = DOCUMENT.split("# Request fields\n")[1].split("\n#", maxsplit=1)[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = set(re.findall(r"`([a-z_]+)(?:\.[a-z_]+)?`", "".join(first_cells)))
    fields = ChatBody.model_fields.keys() | CompletionBody.model_fields.keys()
    assert documented == fields


def test_no_field_is_in_two_tables() -> None:
    fields = ChatBody.model_fields.keys() | CompletionBody.model_fields.keys()
    tables = [fields, NO_OP_FIELDS.keys(), UNSUPPORTED_FIELDS.keys()]
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_codes_of_errors_are_documented() -> None:
    documented = {cell for row in rows("Errors") for cell in re.findall(r"`([a-z_]+)`", row[1])}
    for row in rows("Errors", (DOCS / "admin-api.md").read_text()):
        documented |= set(re.findall(r"`([a-z_]+)`", row[1]))
    of_clients_that_left = {"client_closed_request", "slow_client"}
    codes = {rule.code for rule in RULES.values() if rule.code is not None}
    assert codes - of_clients_that_left <= documented


@pytest.mark.parametrize("what", ["limit", "remaining", "reset"])
async def test_documented_headers_are_sent(gateway: Gateway, what: str) -> None:
    headers = (await gateway.chat()).headers
    for noun in ("requests", "tokens"):
        name = f"x-ratelimit-{what}-{noun}"
        assert f"`{name}`" in DOCUMENT
        assert name in headers


def test_every_route_of_operators_is_documented() -> None:
    document = (DOCS / "admin-api.md").read_text()
    app = FastAPI()
    app.include_router(router)
    for path in app.openapi()["paths"]:
        *_, last = path.split("/")
        assert last in document


async def test_every_route_of_uploads_is_documented(gateway: Gateway) -> None:
    paths = (await gateway.client.get("/openapi.json")).json()["paths"]
    ours = ("/v1/adapters/uploads", "/v1/adapters/import")
    routes = [(m, path) for path in paths if path.startswith(ours) for m in paths[path]]
    assert len(routes) == 8
    missing = [r for r in routes if f"`{r[0].upper()} {r[1]}`" not in DOCUMENT]
    assert missing == []


def test_columns_of_exports_are_the_documented_ones() -> None:
    cells = [row[0] for row in rows("Exports", (DOCS / "billing.md").read_text())]
    assert tuple(re.findall(r"`([a-z_]+)`", " ".join(cells))) == COLUMNS


def test_actions_of_the_audit_log_are_the_documented_ones() -> None:
    documented = re.findall(
        r"`([a-z_.]+)`", " ".join(r[0] for r in rows("Actions of the audit log"))
    )
    told: set[str] = set()
    packages = DOCS.parent
    for folder in ("adapters/registry", "platform", "tenants"):
        for path in (packages / folder).rglob("*.py"):
            text = path.read_text()
            calls = " ".join(re.findall(r"audit\.append\(.*?\)\n", text, re.DOTALL))
            told |= set(re.findall(r'"((?:adapter|tenant)\.[a-z.]+)"', calls))
            for start in re.findall(r'f"([a-z.]+)\{what\}"', calls):
                ways = re.findall(r'await _tell\([^)]*?"([a-z.]+)"[,)]', text)
                told |= {start + what for what in ways}
    nouns = "tenant|project|key|limit|admin_key|price|budget|person|member"
    for path in (packages / "tenants").glob("*.py"):
        text = path.read_text()
        if "audit.append(" in text:
            told |= set(re.findall(rf'"((?:{nouns})\.(?!id")[a-z_]+)"', text))
    assert sorted(documented) == sorted(told)
