"""What an upgrade keeps: Helm renders against a stub of an API server that has a Secret."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from tests.helm.chart import CHART, HELMS, one, run_helm

SECRETS = "/api/v1/namespaces/default/secrets/"
KINDS = {
    "v1": ["Secret", "Service", "ServiceAccount", "PersistentVolumeClaim", "Pod"],
    "apps/v1": ["Deployment"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
}
"""What the chart's default values make."""
OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {
        "meta.helm.sh/release-name": "release",
        "meta.helm.sh/release-namespace": "default",
    },
}
"""How Helm marks what it has installed."""
KEPT = {"token": "dG9rZW4=", "tls.crt": "Y3J0", "tls.key": "a2V5"}


class Cluster(ThreadingHTTPServer):
    """Knows Secrets by name, and nothing else."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secrets: dict[str, dict] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str) -> tuple[int, dict]:
        """Status and body for a path."""
        discovery = _discovery()
        if path in discovery:
            return 200, discovery[path]
        name = path.removeprefix(SECRETS)
        if name in self.secrets:
            metadata = {"name": name, "namespace": "default", **OWNED}
            data = {"data": self.secrets[name]}
            return 200, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata} | data
        failure = {"apiVersion": "v1", "kind": "Status", "status": "Failure"}
        return 404, failure | {"reason": "NotFound", "code": 404}


class _Handler(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        status, body = self.server.answer(self.path.partition("?")[0])
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def _discovery() -> dict[str, dict]:
    """What an API server tells about itself."""
    groups = [
        {
            "name": name.partition("/")[0],
            "versions": [{"groupVersion": name, "version": "v1"}],
            "preferredVersion": {"groupVersion": name, "version": "v1"},
        }
        for name in KINDS
        if "/" in name
    ]
    resources = {
        f"/apis/{name}" if "/" in name else f"/api/{name}": {
            "kind": "APIResourceList",
            "groupVersion": name,
            "resources": [_resource(kind) for kind in kinds],
        }
        for name, kinds in KINDS.items()
    }
    return resources | {
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }


def _resource(kind: str) -> dict:
    singular = kind.lower()
    plural = f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"
    verbs = ["get", "create", "patch"]
    return {
        "name": plural,
        "singularName": singular,
        "namespaced": True,
        "kind": kind,
        "verbs": verbs,
    }


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("helm", HELMS)
def test_an_upgrade_keeps_the_streams_token_and_certificate(helm: str, cluster: Cluster) -> None:
    cluster.secrets["release-loraplex-stream"] = KEPT
    assert _rendered_secret(helm, cluster) == KEPT


@pytest.mark.parametrize("helm", HELMS)
def test_each_installation_makes_a_token_of_its_own(helm: str, cluster: Cluster) -> None:
    first, second = (_rendered_secret(helm, cluster) for _ in range(2))
    assert set(first) == set(KEPT)
    assert first["token"] != second["token"]


def _rendered_secret(helm: str, cluster: Cluster) -> dict[str, str]:
    options = ["--dry-run=server", "--kube-apiserver", cluster.url, "--namespace", "default"]
    done = run_helm(
        helm, "template", "release", str(CHART), *options, "--disable-openapi-validation"
    )
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    return one(objects, "Secret", "-stream")["data"]
