"""Projects, keys with scopes, limits, roles and the audit log on the command line."""

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from tests.platform.shell import Shell


@pytest.fixture
def acme(tmp_path: Path, sqlite_url: str) -> Shell:
    shell = Shell(tmp_path, sqlite_url)
    shell.out("tenant", "create", "acme", "--service-tiers", "default,flex")
    return shell


def test_a_project_has_keys_that_are_narrowed_and_rotated(acme: Shell) -> None:
    acme.out("project", "create", "acme", "web", "--model", "tiny", "--model", "acme/a")
    made = json.loads(
        acme.out("key", "create", "acme", "--project", "web", "--model", "tiny", "--json")
    )
    key_id = made["key_id"]
    acme.out("key", "scope", "acme", key_id, "--role", "read_only", "--address", "10.0.0.0/8")
    (listed,) = acme.rows("key", "list", "acme", "--project", "web")
    assert (listed["role"], listed["models"], listed["project"]) == ("read_only", ["tiny"], "web")
    assert listed["addresses"] == ["10.0.0.0/8"]
    acme.out("key", "scope", "acme", key_id, "--all", "addresses")
    again = json.loads(acme.out("key", "rotate", "acme", key_id, "--grace-hours", "1", "--json"))
    assert again["key_id"] == key_id
    assert again["key"] != made["key"]
    (listed,) = acme.rows("key", "list", "acme")
    assert listed["addresses"] is None
    assert listed["previous_until"] is not None
    acme.out("key", "revoke-previous", "acme", key_id)
    (listed,) = acme.rows("key", "list", "acme")
    assert listed["previous_until"] is None
    refused = acme.failure("key", "create", "acme", "--project", "web", "--model", "acme/b")
    assert "the project may not call acme/b, only tiny, acme/a" in refused
    acme.out("project", "rename", "acme", "web", "shop")
    acme.out("project", "models", "acme", "shop")
    acme.out("project", "archive", "acme", "shop")
    rows = {row["name"]: row for row in acme.rows("project", "list", "acme")}
    assert (rows["shop"]["status"], rows["shop"]["models"]) == ("archived", None)
    acme.out("project", "restore", "acme", "shop")
    assert "default" in acme.out("project", "list", "acme")


def test_limits_of_every_scope_are_set_and_removed(acme: Shell) -> None:
    acme.out("project", "create", "acme", "web")
    acme.out("limit", "set", "acme", "tokens_per_month", "1000")
    made = acme.rows(
        *("limit", "set", "acme", "requests_per_minute", "10", "--project", "web"),
        *("--burst", "5", "--shadow", "--on-store-loss", "closed"),
    )
    assert (made[0]["burst"], made[0]["mode"], made[0]["on_store_loss"]) == (5, "shadow", "closed")
    acme.out("limit", "set", "acme", "enqueued_tokens", "500", "--shadow")
    (shown,) = acme.rows("tenant", "show", "acme")
    limits = shown["limits"]
    assert (limits["tokens_per_month"], limits["enqueued_tokens"]) == (1000, 500)
    assert "requests_per_minute" in limits
    assert "500 (shadow" in acme.out("tenant", "show", "acme")
    acme.out("limit", "remove", "acme", "enqueued_tokens")
    told = acme.run("limit", "set", "acme", "cost_micros_per_month", "5", "--json")
    assert "No price holds yet" in told.stderr
    acme.out("limit", "remove", "acme", "cost_micros_per_month")
    scopes = [row["scope"] for row in acme.rows("limit", "list", "acme")]
    assert scopes == ["tenant", "project"]
    told = acme.failure("limit", "set", "acme", "tokens_per_month", "1001", "--project", "web")
    assert "the tenant has 1000" in told
    told = acme.failure("limit", "set", "acme", "speed", "1")
    assert "requests_per_minute" in told
    adjust = ("budget", "adjust", "acme", "tokens_per_month", "--reason", "gift")
    assert "0 reserved" in acme.out(*adjust, "7", "--project", "web")
    assert "tokens_per_month: 0 spent" in acme.out(
        *("budget", "reset", "acme", "tokens_per_month", "--project", "web", "--reason", "again")
    )
    amounts = [(row["scope"], row["amount"]) for row in acme.rows("budget", "list", "acme")]
    assert amounts == [("project", 7), ("project", -7)]
    acme.out("limit", "remove", "acme", "tokens_per_month")
    assert "no limit" in acme.failure("limit", "remove", "acme", "tokens_per_month")


def test_the_audit_log_is_verified_and_a_change_of_it_is_named(acme: Shell) -> None:
    acme.out("admin-key", "create", "--role", "finance", "--label", "f")
    assert acme.rows("admin-key", "list")[0]["role"] == "finance"
    assert "none of owner" in acme.failure("admin-key", "create", "--role", "king")
    acme.out("tenant", "suspend", "acme", "--reason", "unpaid")
    assert "['" not in acme.out("audit", "list")
    acme.out("tenant", "set", "acme", "--time-zone", "Asia/Tokyo")
    (shown,) = acme.rows("tenant", "show", "acme")
    assert (shown["time_zone"], shown["service_tiers"]) == ("Asia/Tokyo", ["default", "flex"])
    assert "  default, flex\n" in acme.out("tenant", "show", "acme")
    (report,) = acme.rows("audit", "verify")
    assert (report["num_events"], report["broken_id"]) == (4, None)
    assert "whole: 4 events" in acme.out("audit", "verify", "--head", str(report["head"]))
    assert acme.run("audit", "verify", "--head", "0" * 64).exit_code == 1
    url = make_url(acme.database_url).set(drivername="sqlite")
    with create_engine(url).begin() as connection:
        connection.execute(text("DROP TRIGGER audit_event_update"))
        connection.execute(text("UPDATE audit_event SET detail = '{}' WHERE id = 3"))
    assert "broken at event 3" in acme.failure("audit", "verify")
