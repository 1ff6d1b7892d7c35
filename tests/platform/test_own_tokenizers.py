"""Tokenizers that adapters bring: a tenant's own, whoever else has the same, and no one's delay."""

import asyncio
import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from tests.platform.scripted_engine import ScriptedEngine
from tests.platform.test_prompts import now
from tests.platform.tiny_model import model_info

from loraplex.adapters.errors import AdapterMissing
from loraplex.adapters.profile import TOKENIZER_FILE, Profile
from loraplex.adapters.storage import AdapterStore
from loraplex.platform.prompts import Text
from loraplex.platform.prompts_of_engine import AdapterInUse, PromptsOfEngine
from loraplex.platform.template_process import TemplateLimits, TemplateProcesses

TOKENIZER = model_info().tokenizer_json
PROFILE = Profile(tokenizer_sha256=hashlib.sha256(TOKENIZER).hexdigest())


class HeldStore(AdapterStore):
    """A store that gives no file before it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_free = Event()

    def read_file(self, digest: str, name: str, sha256: str) -> bytes:
        assert self.is_free.wait(60)
        return super().read_file(digest, name, sha256)


@pytest.fixture
def store(tmp_path: Path) -> HeldStore:
    for digest in ("a" * 64, "b" * 64, "c" * 64):
        home = tmp_path / digest[:2] / digest
        home.mkdir(parents=True)
        (home / TOKENIZER_FILE).write_bytes(TOKENIZER)
    return HeldStore(tmp_path)


@pytest.fixture
def prompts(store: HeldStore) -> Iterator[PromptsOfEngine]:
    templates = TemplateProcesses(TemplateLimits(1.0, 1 << 28, 1))
    engine = ScriptedEngine(model_info(max_model_len=100_000))
    prompts = PromptsOfEngine(engine, store, templates, now, secrets.token_bytes)
    yield prompts
    store.is_free.set()
    prompts.close()


def in_use(digest: str, tenant: str) -> AdapterInUse:
    return AdapterInUse(tenant, f"{tenant}/mine@1", digest * 64, PROFILE)


async def test_a_store_that_is_slow_delays_no_prompt_that_needs_nothing_of_it(
    prompts: PromptsOfEngine, store: HeldStore
) -> None:
    waiting = [
        asyncio.create_task(prompts.encode(Text("x"), in_use(digest, tenant)))
        for digest, tenant in (("a", "acme"), ("b", "globex"), ("c", "initech"))
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await prompts.encode(Text("x" * 5000))
    assert not any(task.done() for task in waiting)
    store.is_free.set()
    assert all(await asyncio.gather(*waiting))


async def test_a_tenant_gets_neither_the_tokenizer_nor_the_error_of_another(
    prompts: PromptsOfEngine, store: HeldStore
) -> None:
    store.is_free.set()
    assert await prompts.encode(Text("x"), in_use("a", "acme"))
    with pytest.raises(AdapterMissing):
        await prompts.encode(Text("x"), in_use("f", "globex"))
    assert await prompts.encode(Text("x"), in_use("a", "globex"))
