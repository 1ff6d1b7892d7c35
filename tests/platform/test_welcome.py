"""What a person reads when `loraplex serve` is ready."""

from pathlib import Path

from loraplex.platform.demo.seed import SeededTenant, demo_adapters
from loraplex.platform.serve import Ready
from loraplex.platform.welcome import EXAMPLE_MODEL, welcome


def told(*tenants: SeededTenant) -> str:
    return welcome(Ready("http://here", tenants, "base", None, Path("data")))


def test_the_example_is_for_an_adapter_of_the_demo_whatever_else_was_published() -> None:
    tenant, _, adapter = EXAMPLE_MODEL.partition("/")
    assert adapter in [path.name for path in demo_adapters()[tenant]]
    models = ("acme/aaa", EXAMPLE_MODEL)
    text = told(SeededTenant("aaa", "k1", ("aaa/b",)), SeededTenant(tenant, "k2", models))
    assert f'"model": "{EXAMPLE_MODEL}"' in text
    assert "Bearer k2" in text


def test_without_the_demo_the_example_is_for_what_there_is() -> None:
    text = told(SeededTenant("acme", None, (EXAMPLE_MODEL,)), SeededTenant("b", "k", ("b/c",)))
    assert '"model": "b/c"' in text
    assert "loraplex tenant create NAME" in told(SeededTenant("b", "k", ()))


def test_what_is_revoked_or_left_alone_is_told_with_a_command_that_runs_as_it_stands() -> None:
    text = told(SeededTenant("acme", None, (EXAMPLE_MODEL,)))
    assert "loraplex key create acme --data-dir data" in text
    assert "loraplex admin-key create --data-dir data" in text
    ready = Ready("http://here", (), "base", None, Path("data"), ("globex",))
    assert "left alone, since deleted or not the demo's: globex" in welcome(ready)
