"""What a worker knows of an adapter once it has read it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from tests.adapters import build

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.digest import with_profile
from loraplex.adapters.profile import AddedToken, Profile
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.stored_adapters import StoredAdapters


def test_the_tokens_that_an_adapter_adds_are_known_once_it_was_read(tmp_path: Path) -> None:
    checkpoint = inspect(build.save(tmp_path / "mine"), build.base())
    token = AddedToken(5, "<tool>", is_special=False)
    profile = Profile(added_tokens=(token,)).kept()
    digest = with_profile(checkpoint.digest, profile)
    store = AdapterStore(tmp_path / "store")
    store.put(checkpoint)
    store.put(replace(checkpoint, digest=digest), profile)
    model = SimpleNamespace(device=torch.device("cpu"), shapes=build.base(), weights={})
    runner = SimpleNamespace(model=model, reads_b_transposed=False)
    stored = StoredAdapters(store, runner)  # type: ignore[arg-type]  # all that is read of a runner
    assert stored.read(checkpoint.digest).profile.added_tokens == ()
    assert stored.read(digest).profile.added_tokens == (token,)
