"""The platform as it is run in production: on PostgreSQL and Valkey."""

from collections.abc import Callable
from pathlib import Path

from tests.services.valkey import Valkey
from tests.walk.served import serving, usage_rows


def test_the_demo_is_served_on_postgresql_and_valkey(
    new_demo_data_dir: Callable[[], Path], postgres_url: str, valkey: Valkey
) -> None:
    valkey.client.flushall()
    data_dir = new_demo_data_dir()
    with serving(data_dir, ["--database-url", postgres_url, "--redis-url", valkey.url]) as served:
        body = {
            "model": "acme/triage",
            "messages": [{"role": "user", "content": "I was charged twice."}],
            "max_tokens": 4,
        }
        reply = served.post(served.key("acme"), body)
        assert reply.status_code == 200
        assert served.stop() == 0
    (row,) = usage_rows(data_dir, "acme", postgres_url)
    assert row["completion_tokens"] == reply.json()["usage"]["completion_tokens"]
    assert not (data_dir / "loraplex.db").exists()
    (tag,) = {key.partition(b"}")[0] for key in valkey.client.scan_iter()}
    assert tag.startswith(b"{t:tnt_")
