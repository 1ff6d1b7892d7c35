"""Checks a release from inside the cluster: it is ready, and it knows who asks for models."""

import http.client
import json
import os
import sys


def get(path: str, key: str | None = None) -> tuple[int, str]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection(os.environ["GATEWAY"], timeout=10)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


status, body = get("/readyz")
if status != 200:
    sys.exit(f"/readyz answered {status}: {body}")
key = os.environ.get("TENANT_KEY")
status, body = get("/v1/models", key)
if key is None and status != 401:
    sys.exit(f"/v1/models answered {status} to a caller without a key, not 401: {body}")
if key is not None and (status != 200 or not json.loads(body)["data"]):
    sys.exit(f"/v1/models answered {status} to the tenant's key: {body}")
sys.stdout.write(f"ready; /v1/models answered {status}: {body}\n")
