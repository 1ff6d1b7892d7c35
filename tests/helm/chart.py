"""Renders the chart with real Helm binaries, which `make` puts into `.tools`."""

import json
import subprocess
from functools import lru_cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "helm" / "loraplex"
HELMS = ("helm-4", "helm-3")
KUBERNETES = ("1.27", "1.32", "1.37")
"""The oldest version that the chart accepts, one between, and the newest."""

PRODUCTION = {
    "database": {"existingSecret": "postgres"},
    "pepper": {"existingSecret": "pepper"},
    "data": {"accessMode": "ReadWriteMany"},
    "quotas": {"existingSecret": "valkey"},
    "gateway": {"replicas": 3},
}
GPU = {
    "model": {"name": "/models/llama", "existingClaim": "models"},
    "worker": {
        "settings": {"LORAPLEX_DEVICE": "cuda", "LORAPLEX_KV_MEMORY_BYTES": 8 * 1024**3},
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}},
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h200"},
        "podAnnotations": {"a": "b"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    },
}
EVERYTHING = PRODUCTION | {
    "fullnameOverride": "lora",
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccount": {"create": False, "name": "given"},
    "model": {"name": "org/model"},
    "data": {"accessMode": "ReadWriteMany", "existingClaim": "given"},
    "stream": {"existingSecret": "stream", "port": 7000},
    "quotas": {},
    "gateway": {
        "replicas": 2,
        "limitsPerReplica": True,
        "image": {"repository": "registry/gateway", "digest": f"sha256:{'a' * 64}"},
        "settings": {"LORAPLEX_KEEPALIVE_S": 0.5, "LORAPLEX_LOG_LEVEL": "debug"},
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
        "podAnnotations": {"a": "b"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {},
            }
        ],
        "priorityClassName": "high",
    },
    "worker": {"settings": {"LORAPLEX_THREADS": 6}, "affinity": {"nodeAffinity": {}}},
    "networkPolicy": {
        "gatewayFrom": [{"namespaceSelector": {}}],
        "workerEgress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
    },
    "test": {"existingSecret": "tenant-key"},
}
BARE = {
    "serviceAccount": {"create": False},
    "networkPolicy": {"enabled": False},
    "worker": {"resources": {"requests": None, "limits": None}},
}
CASES = {
    "default": {},
    "production": PRODUCTION,
    "gpu": GPU,
    "everything": EVERYTHING,
    "bare": BARE,
}


class ChartRefused(Exception):
    """Helm did not render; the message is what it said."""


def render(values: dict, helm: str = "helm-4", release: str = "release") -> list[dict]:
    """All objects of a release, its hooks and tests among them."""
    text = _template(json.dumps(values), helm, release)
    # The loader that is written in C; the other takes longer than Helm.
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def one(objects: list[dict], kind: str, suffix: str = "") -> dict:
    """The one object of a kind whose name ends so."""
    (found,) = (
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["name"].endswith(suffix)
    )
    return found


def gateway(objects: list[dict]) -> dict:
    return _deployment(objects, "gateway")


def worker(objects: list[dict]) -> dict:
    return _deployment(objects, "worker")


def pod_specs(objects: list[dict]) -> dict[str, dict]:
    """Every pod's specification by the name of its object."""
    return {
        f"{each['kind']} {each['metadata']['name']}": each["spec"]
        if each["kind"] == "Pod"
        else each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job", "Pod"}
    }


def environment(spec: dict) -> dict[str, dict]:
    """The environment of a pod's only container, by variable."""
    (container,) = spec["containers"]
    names = [each["name"] for each in container["env"]]
    assert len(names) == len(set(names)), f"set twice: {names}"
    return {each["name"]: each for each in container["env"]}


def run_helm(
    helm: str, *arguments: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    program = ROOT / ".tools" / helm
    assert program.exists(), f"{program} is missing; `make helm-test` fetches it"
    return subprocess.run(
        [str(program), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _deployment(objects: list[dict], component: str) -> dict:
    (found,) = (
        each
        for each in objects
        if each["kind"] == "Deployment"
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    return found


@lru_cache
def _template(values: str, helm: str, release: str) -> str:
    done = run_helm(
        helm, "template", release, str(CHART), "--namespace", "space", "-f", "-", stdin=values
    )
    if done.returncode != 0:
        raise ChartRefused(done.stderr)
    return done.stdout
