"""The operator's way through the platform, as `loraplex serve` opens it."""

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
