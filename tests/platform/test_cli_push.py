"""The command that pushes an adapter, as an operator types it."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.platform.shell import Shell

from loraplex.adapters.profile import Profile
from loraplex.adapters.registry.profiles import read_profile
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.protocol import LinearShapes
from loraplex.platform.base_record import BaseRecord, write_record
from loraplex.tenants import directory
from loraplex.tenants.db import Database

HIDDEN = 8


@pytest.fixture
def acme(tmp_path: Path, database_url: str) -> Shell:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    shell = Shell(data_dir, database_url)
    shell.out("tenant", "create", "acme")
    return shell


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "tie_word_embeddings": false}')
    weight = np.zeros((HIDDEN, HIDDEN), dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": np.zeros((32, HIDDEN), dtype=np.float32),
        "model.layers.0.self_attn.q_proj.weight": weight,
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def make_checkpoint(folder: Path, value: float, target: str = "q_proj") -> str:
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": [target],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    module = f"base_model.model.model.layers.0.self_attn.{target}"
    tensors = {
        f"{module}.lora_A.weight": np.full((2, HIDDEN), value, dtype=np.float32),
        f"{module}.lora_B.weight": np.full((HIDDEN, 2), value, dtype=np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def test_a_pushed_adapter_is_stored_and_published(acme: Shell, base: Path, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", 0.5)
    said = acme.out("adapter", "push", "acme/support", checkpoint, "--model", str(base))
    (row,) = acme.rows("adapter", "list", "acme")
    assert said.startswith("Published acme/support@1 (rank 2, 128 bytes, ")
    assert row["self_test"] is None
    for shown in (("list", "acme"), ("show", "acme/support")):
        assert "not run" in acme.out("adapter", *shown)
    assert (row["model"], row["version"], row["base_model"]) == ("acme/support", 1, "tiny-base")
    assert AdapterStore(acme.data_dir / "adapters").open(str(row["digest"])).is_dir()


def test_where_a_pushed_adapter_begins_to_act_is_known_to_gateways(
    acme: Shell, base: Path, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", 0.5)
    config = tmp_path / "checkpoint" / "adapter_config.json"
    content = json.loads(config.read_text()) | {"alora_invocation_tokens": [7, 31]}
    config.write_text(json.dumps(content))
    (pushed,) = acme.rows("adapter", "push", "acme/support", checkpoint, "--model", str(base))

    async def read() -> Profile:
        database = Database.open(acme.database_url)
        async with database.reader() as session:
            tenant = await directory.get_by_name(session, "acme")
            profile = await read_profile(session, tenant.id, str(pushed["digest"]))
        await database.close()
        return profile

    assert asyncio.run(read()).invocation_tokens == (7, 31)


def test_without_a_model_the_one_that_was_served_last_counts(
    acme: Shell, base: Path, tmp_path: Path
) -> None:
    linears = {"model.layers.0.self_attn.q_proj": (HIDDEN, HIDDEN)}
    shapes = LinearShapes(linears=linears, embeddings={}, heads=())
    write_record(acme.data_dir / "base.json", BaseRecord("served", base, shapes))
    checkpoint = make_checkpoint(tmp_path / "checkpoint", 0.5)
    (pushed,) = acme.rows("adapter", "push", "acme/support", checkpoint)
    assert pushed["base_model"] == "served"
    (again,) = acme.rows("adapter", "push", "acme/support", checkpoint, "--model", str(base))
    assert again == pushed


def test_pushing_old_bytes_again_says_what_the_name_still_means(
    acme: Shell, base: Path, tmp_path: Path
) -> None:
    old = make_checkpoint(tmp_path / "old", 0.5)
    new = make_checkpoint(tmp_path / "new", 0.25)
    for checkpoint in (old, new):
        acme.out("adapter", "push", "acme/support", checkpoint, "--model", str(base))
    result = acme.run("adapter", "push", "acme/support", old, "--model", str(base))
    assert "published as acme/support@1 already; nothing changed" in result.stdout
    assert "Published" not in result.stdout
    assert "still means acme/support@2" in result.stderr


def test_a_checkpoint_that_does_not_fit_is_refused_with_every_problem(
    acme: Shell, base: Path, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", 0.5, target="other_proj")
    config = tmp_path / "checkpoint" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_qalora": True, "zzz": 1}))
    error = acme.failure("adapter", "push", "acme/support", checkpoint, "--model", str(base))
    assert error.startswith("error: the adapter is refused:\n  - ")
    assert "use_qalora" in error
    assert "zzz" in error
    assert acme.rows("adapter", "list", "acme") == []


def test_a_record_of_the_base_model_that_is_broken_is_named(acme: Shell, tmp_path: Path) -> None:
    (acme.data_dir / "base.json").write_text("{")
    assert "base.json cannot be read" in acme.failure("adapter", "push", "acme/a", str(tmp_path))


def test_a_store_that_cannot_be_written_is_named(acme: Shell, base: Path, tmp_path: Path) -> None:
    (acme.data_dir / "adapters").write_text("in the way")
    checkpoint = make_checkpoint(tmp_path / "checkpoint", 0.5)
    error = acme.failure("adapter", "push", "acme/a", checkpoint, "--model", str(base))
    assert "cannot be stored" in error
