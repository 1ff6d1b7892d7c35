"""The operator's way through the platform, as `loraplex serve` opens it."""

import time

import httpx
from tests.walk.served import Served, run_cli

from loraplex.platform.demo.seed import DEMO_ADAPTERS


def test_the_key_that_serve_prints_opens_the_admin_api_and_no_tenants_route(
    served: Served,
) -> None:
    headers = {"Authorization": f"Bearer {served.ready['admin_key']}"}
    tenants = httpx.get(f"{served.url}/admin/v1/tenants", headers=headers, timeout=30)
    assert {"acme", "globex", "initech"} <= {tenant["name"] for tenant in tenants.json()["data"]}
    assert httpx.get(f"{served.url}/v1/models", headers=headers, timeout=30).status_code == 401
    listed = run_cli("admin-key", "list", "--data-dir", str(served.data_dir))
    assert "serve" in listed.stdout


def test_an_adapter_that_a_tenant_uploads_can_be_called_at_once(served: Served) -> None:
    folder = DEMO_ADAPTERS / "acme" / "triage"
    names = ("adapter_config.json", "adapter_model.safetensors")
    uploaded = httpx.post(
        f"{served.url}/v1/adapters",
        data={"name": "uploaded"},
        files={name: (name, (folder / name).read_bytes()) for name in names},
        headers={"Authorization": f"Bearer {served.key('globex')}"},
        timeout=250,
    )
    assert uploaded.status_code == 201, uploaded.text
    self_test = uploaded.json()["self_test"]
    assert (self_test["method"], self_test["detail"]) == ("peft", "")
    assert self_test["changes_output"]
    body = {
        "model": "globex/uploaded",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "I was charged twice."}],
    }
    answer = served.post(served.key("globex"), body)
    assert answer.headers["x-loraplex-model"] == "globex/uploaded@1"


def test_an_adapter_that_a_tenant_deletes_leaves_the_workers_memory(served: Served) -> None:
    key = served.key("initech")
    headers = {"Authorization": f"Bearer {key}"}
    folder = DEMO_ADAPTERS / "acme" / "triage"
    pushed = run_cli(
        *("adapter", "push", "initech/passing", str(folder), "--data-dir", str(served.data_dir))
    )
    assert pushed.returncode == 0, pushed.stderr
    before = held_bytes(served)
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "initech/passing", "max_tokens": 2, "messages": messages}
    assert served.post(key, body).status_code == 200
    assert held_bytes(served) > before
    deleted = httpx.delete(f"{served.url}/v1/adapters/passing", headers=headers, timeout=30)
    assert deleted.status_code == 202
    assert served.post(key, body).status_code == 404
    ends = time.monotonic() + 60
    while held_bytes(served) > before:
        assert time.monotonic() < ends, "its memory is not freed"
    versions = httpx.get(f"{served.url}/v1/adapters/passing", headers=headers, timeout=30).json()
    assert versions["versions"][0]["status"] == "deleted"


def held_bytes(served: Served) -> float:
    """Bytes of adapters on the worker's device."""
    lines = httpx.get(f"{served.url}/metrics", timeout=30).text.splitlines()
    wanted = 'loraplex_adapter_bytes{state="held"} '
    return float(next(line for line in lines if line.startswith(wanted)).removeprefix(wanted))
