"""`loraplex adapter push` and `import` check and keep what folders bring beside the weights."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.adapters import build
from tests.platform.shell import Shell
from tests.platform.tiny_model import CHAT_TEMPLATE, tokenizer_json

from loraplex.adapters.profile import Profile
from loraplex.adapters.registry.profiles import read_profile
from loraplex.adapters.storage import AdapterStore, profile_of
from loraplex.platform.base_record import BaseRecord, told, write_record
from loraplex.tenants import directory
from loraplex.tenants.db import Database


@pytest.fixture
def acme(tmp_path: Path, sqlite_url: str) -> Shell:
    """A tenant, and a base model that a worker served."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "tokenizer.json").write_bytes(tokenizer_json())
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    write_record(tmp_path / "base.json", BaseRecord("tiny", base, told(build.base())))
    shell = Shell(tmp_path, sqlite_url)
    shell.out("tenant", "create", "acme")
    return shell


def kept(acme: Shell, digest: str) -> Profile:
    async def read() -> Profile:
        database = Database.open(acme.database_url)
        async with database.reader() as session:
            tenant = await directory.get_by_name(session, "acme")
            found = await read_profile(session, tenant.id, digest)
        await database.close()
        return found

    return asyncio.run(read())


def test_a_folder_with_a_template_is_pushed_with_it(acme: Shell, tmp_path: Path) -> None:
    folder = build.save(tmp_path / "mine")
    (plain,) = acme.rows("adapter", "push", "acme/mine", str(folder))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    (pushed,) = acme.rows("adapter", "push", "acme/mine", str(folder))
    assert (plain["version"], pushed["version"]) == (1, 2)
    profile = kept(acme, str(pushed["digest"]))
    assert profile.chat_template == "{{ messages[0].content }}!"
    home = AdapterStore(acme.data_dir / "adapters").open(str(pushed["digest"]))
    assert profile_of(home) == profile


def test_a_folder_whose_template_fails_is_refused(acme: Shell, tmp_path: Path) -> None:
    folder = build.save(tmp_path / "mine")
    (folder / "chat_template.jinja").write_text("{% if %}")
    assert "chat_template.jinja" in acme.failure("adapter", "push", "acme/mine", str(folder))


def test_what_cannot_be_compared_with_the_base_is_refused(acme: Shell, tmp_path: Path) -> None:
    folder = build.save(tmp_path / "mine")
    (folder / "generation_config.json").write_text("{}")
    (tmp_path / "base" / "tokenizer.json").unlink()
    assert "cannot be checked" in acme.failure("adapter", "push", "acme/mine", str(folder))


def test_an_adapter_of_a_source_is_imported(
    acme: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build.save(tmp_path / "shared" / "team" / "mine")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    sources = json.dumps({"share": f"file://{tmp_path / 'shared'}"})
    monkeypatch.setenv("LORAPLEX_ADAPTER_SOURCES", sources)
    (row,) = acme.rows("adapter", "import", "acme/mine", "share:team/mine")
    assert kept(acme, str(row["digest"])).stop_token_ids == (2,)
    for reference, words in [
        ("share:../etc", "path must be names"),
        ("share:absent", "no adapter"),
        ("other:x", "has no source"),
    ]:
        assert words in acme.failure("adapter", "import", "acme/mine", reference)
    assert acme.run("adapter", "import", "acme/mine", "share").exit_code == 2
