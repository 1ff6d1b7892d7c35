"""The commands for adapters' names and life, limits and audit log, as an operator types them."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.platform.shell import Shell
from tests.platform.test_cli_push import HIDDEN, make_checkpoint

from loraplex.adapters.registry import gateways
from loraplex.engine.protocol import LinearShapes
from loraplex.platform.base_record import BaseRecord, write_record
from loraplex.tenants.db import Database


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    return Shell(data_dir, database_url)


@pytest.fixture
def acme(shell: Shell, tmp_path: Path) -> Shell:
    """With two versions of `acme/support`."""
    linears = {"model.layers.0.self_attn.q_proj": (HIDDEN, HIDDEN)}
    shapes = LinearShapes(linears=linears, embeddings={}, heads=())
    write_record(shell.data_dir / "base.json", BaseRecord("served", tmp_path, shapes))
    shell.out("tenant", "create", "acme")
    for i in (1, 2):
        shell.out("adapter", "push", "acme/support", make_checkpoint(tmp_path / f"v{i}", i / 4))
    return shell


def stored(shell: Shell) -> list[Path]:
    return [*(shell.data_dir / "adapters").glob("??/*")]


def statuses(shell: Shell) -> list[object]:
    (shown,) = shell.rows("adapter", "show", "acme/support")
    versions = shown["versions"]
    assert isinstance(versions, list)
    return [version["status"] for version in versions]


def test_an_alias_is_made_flipped_and_rolled_back(acme: Shell) -> None:
    alias = ("adapter", "alias", "acme/support:prod")
    assert acme.out(*alias, "@1") == "acme/support:prod means acme/support@1.\n"
    (flipped,) = acme.rows(*alias, "2", "--expected", "1")
    assert (flipped["model"], flipped["version"], flipped["previous"]) == (
        "acme/support:prod",
        2,
        1,
    )
    assert "was expected at version 1" in acme.failure(*alias, "@1", "--expected", "1")
    assert "means acme/support@1." in acme.out("adapter", "rollback", "acme/support:prod")
    assert "no version before" in acme.failure("adapter", "rollback", "acme/support:prod")
    delete = ("adapter", "delete", "acme/support:prod")
    assert acme.out(*delete) == "acme/support:prod is deleted.\n"
    assert acme.out(*delete) == "There was no alias acme/support:prod.\n"


def test_a_canary_is_set_promoted_and_cleared(acme: Shell) -> None:
    acme.out("adapter", "alias", "acme/support:prod", "@1")
    canary = ("adapter", "canary", "acme/support:prod")
    said = acme.out(*canary, "@2", "10")
    assert "10 % of requests run on acme/support@2." in said
    assert "means acme/support@2." in acme.out(*canary, "--promote")
    (cleared,) = acme.rows(*canary, "--clear")
    assert cleared["canary"] is None
    for arguments in ((), ("@1",), ("@1", "5", "--clear"), ("--clear", "--promote")):
        assert acme.run(*canary, *arguments).exit_code == 2


def test_a_version_is_retired_and_restored(acme: Shell) -> None:
    assert "no new request" in acme.out("adapter", "retire", "acme/support@2")
    assert statuses(acme) == ["retired", "ready"]
    (restored,) = acme.rows("adapter", "restore", "acme/support@2")
    assert restored["status"] == "ready"
    acme.out("adapter", "alias", "acme/support:prod", "@2")
    assert "the alias prod" in acme.failure("adapter", "retire", "acme/support@2")
    acme.out("adapter", "retire", "acme/support@2", "--force")
    assert statuses(acme) == ["retired", "ready"]


def test_without_a_gateway_a_deletion_is_finished_at_once(acme: Shell) -> None:
    assert len(stored(acme)) == 2
    assert acme.out("adapter", "delete", "acme/support@1") == "acme/support@1 is deleted.\n"
    assert len(stored(acme)) == 1
    for alias in ("prod", "test"):
        acme.out("adapter", "alias", f"acme/support:{alias}", "@2")
    assert acme.out("adapter", "delete", "acme/support").splitlines() == [
        "acme/support:prod is deleted.",
        "acme/support:test is deleted.",
        "acme/support@2 is deleted.",
        "acme/support@1 is deleted.",
    ]
    assert statuses(acme) == ["deleted", "deleted"]
    assert stored(acme) == []
    assert acme.rows("adapter", "list", "acme") == []


def test_beside_a_gateway_a_deletion_is_left_to_it(acme: Shell) -> None:
    async def say() -> None:
        database = Database.open(acme.database_url)
        async with database.session() as session:
            await gateways.say(session, "gtw_1", datetime.now(UTC), [])
        await database.close()

    asyncio.run(say())
    said = acme.out("adapter", "delete", "acme/support@1")
    assert "a gateway ends it when its requests end" in said
    forced = acme.out("adapter", "delete", "acme/support@1", "--force")
    assert "each gateway ends its requests within about 20 s" in forced
    assert len(stored(acme)) == 2
    assert "deleting" in acme.out("adapter", "list", "acme")


def test_a_version_is_pinned_within_the_tenants_limit(acme: Shell) -> None:
    assert "may pin" in acme.failure("adapter", "pin", "acme/support@1")
    acme.out("tenant", "set", "acme", "--adapter-pin-bytes", "200")
    assert acme.out("adapter", "pin", "acme/support@1") == "acme/support@1 is pinned.\n"
    assert "pinned" in acme.out("adapter", "show", "acme/support")
    assert acme.out("adapter", "unpin", "acme/support@1") == "acme/support@1 is not pinned.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("alias", "acme/support", "@1"),
        ("alias", "acme/support:prod", "@0"),
        ("alias", "acme/support:prod", "newest"),
        ("retire", "acme/support"),
        ("show", "acme/support@1"),
        ("delete", "support"),
    ],
)
def test_names_of_another_form_are_refused(acme: Shell, arguments: tuple[str, ...]) -> None:
    assert acme.run("adapter", *arguments).exit_code == 2


def test_what_is_not_there_is_told_in_a_line(acme: Shell) -> None:
    for arguments, told in (
        (("show", "acme/nothing"), "there is no adapter acme/nothing"),
        (("delete", "acme/support@9"), "there is no version acme/support@9"),
        (("alias", "acme/support:prod", "@9"), "there is no version acme/support@9"),
        (("rollback", "acme/support:nope"), "there is no alias acme/support:nope"),
    ):
        assert acme.failure("adapter", *arguments) == f"error: {told}\n"
    assert "no tenant" in acme.failure("adapter", "alias", "other/support:prod", "@1")


def test_each_limit_can_be_set_shown_and_taken_away(acme: Shell) -> None:
    limits = {
        "requests_per_minute": 1,
        "tokens_per_minute": 2,
        "concurrency": 3,
        "ttft_deadline_ms": 4,
        "adapter_storage_bytes": 5,
        "adapter_max_rank": 6,
        "adapter_max_modules": 7,
        "adapter_floor_bytes": 8,
        "adapter_cap_bytes": 9,
        "adapter_pin_bytes": 10,
        "adapter_host_floor_bytes": 11,
        "adapter_host_cap_bytes": 12,
    }
    for name, value in limits.items():
        acme.out("tenant", "set", "acme", f"--{name.replace('_', '-')}", str(value))
    (shown,) = acme.rows("tenant", "show", "acme")
    assert shown["limits"] == limits
    for name in limits:
        acme.out("tenant", "set", "acme", f"--{name.replace('_', '-')}", "default")
    (shown,) = acme.rows("tenant", "show", "acme")
    assert shown["limits"] == dict.fromkeys(limits)
    text = acme.out("tenant", "show", "acme")
    for told in (
        "concurrency +default",
        "adapter_max_rank +no limit",
        "adapter_floor_bytes +none",
        "adapter_pin_bytes +0",
    ):
        assert re.search(told, text), told
    help_text = " ".join(acme.out("tenant", "set", "--help").replace("│", "").split())
    assert "half of that memory" in help_text


def test_an_empty_list_of_tenants_says_what_to_do(shell: Shell) -> None:
    assert "loraplex tenant create NAME" in shell.out("tenant", "list")


def test_a_tenant_is_made_with_limits_of_its_own(shell: Shell) -> None:
    limits = ("--adapter-max-rank", "64", "--ttft-deadline-ms", "900")
    shell.out("tenant", "create", "acme", *limits)
    (tenant,) = shell.rows("tenant", "list")
    own = tenant["limits"]
    assert isinstance(own, dict)
    assert (own["adapter_max_rank"], own["ttft_deadline_ms"]) == (64, 900)


def test_limits_that_are_none_are_refused(acme: Shell) -> None:
    assert acme.run("tenant", "set", "acme").exit_code == 2
    assert acme.run("tenant", "set", "acme", "--concurrency", "many").exit_code == 2
    assert "concurrency must be 1" in acme.failure("tenant", "set", "acme", "--concurrency", "0")
    too_high = ("--adapter-floor-bytes", "9", "--adapter-cap-bytes", "8")
    assert "more than adapter_cap_bytes" in acme.failure("tenant", "set", "acme", *too_high)
    too_high = ("--adapter-host-floor-bytes", "9", "--adapter-host-cap-bytes", "8")
    assert "than adapter_host_cap_bytes" in acme.failure("tenant", "set", "acme", *too_high)


def test_a_push_beyond_the_tenants_storage_is_refused_and_leaves_nothing(
    acme: Shell, tmp_path: Path
) -> None:
    acme.out("tenant", "set", "acme", "--adapter-storage-bytes", "300")
    folder = make_checkpoint(tmp_path / "v3", 3.0)
    assert "256 of the 300" in acme.failure("adapter", "push", "acme/support", folder)
    assert len(stored(acme)) == 2


def test_the_audit_log_tells_what_was_done_and_by_whom(acme: Shell) -> None:
    acme.out("adapter", "alias", "acme/support:prod", "@1")
    acme.out("tenant", "set", "acme", "--concurrency", "3")
    events = acme.rows("audit", "list", "--tenant", "acme")
    assert [event["action"] for event in events] == [
        "limit.set",
        "adapter.alias.point",
        "adapter.publish",
        "adapter.publish",
        "tenant.create",
    ]
    assert {event["actor"] for event in events} == {"cli"}
    assert len(acme.rows("audit", "list", "--action", "adapter.alias")) == 1
    assert len(acme.rows("audit", "list", "--subject", "acme/support", "--limit", "2")) == 2
    acme.out("adapter", "delete", "acme/support@2")
    lines = acme.out("audit", "list").splitlines()
    for action, told in (
        ("adapter.alias.point", r"absent → 1$"),
        ("limit.set", r"absent → .*3.* dimension=concurrency$"),
        ("adapter.version.delete ", r"digest=[0-9a-f]{12} mode=drain$"),
        ("adapter.version.deleted", r"digest=[0-9a-f]{12} bytes_removed=yes$"),
    ):
        (line,) = (line for line in lines if action in line)
        assert re.search(told, line), line
