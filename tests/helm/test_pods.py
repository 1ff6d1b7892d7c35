"""What every pod is allowed, what it knows, where it runs and how it ends."""

import math

import pytest
from tests.helm.chart import (
    CASES,
    EVERYTHING,
    GPU,
    PRODUCTION,
    environment,
    gateway,
    one,
    pod_specs,
    render,
    worker,
)

from loraplex.platform.gateway import BROKEN_OFF_S
from loraplex.platform.open_requests import GIVE_UP_S, SETTLE_TIMEOUT_S
from loraplex.platform.settings import Settings

RESTRICTED_VOLUMES = {"emptyDir", "persistentVolumeClaim", "secret"}


@pytest.mark.parametrize("case", CASES)
def test_every_pod_keeps_to_the_restricted_standard(case: str) -> None:
    for spec in pod_specs(render(CASES[case])).values():
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(set(each) - {"name"} <= RESTRICTED_VOLUMES for each in spec.get("volumes", []))
        (container,) = spec["containers"]
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert not security.keys() & {"privileged", "procMount"}
        assert all("hostPort" not in port for port in container.get("ports", []))


@pytest.mark.parametrize("case", CASES)
def test_no_pod_gets_a_token_or_variables_named_after_services(case: str) -> None:
    for spec in pod_specs(render(CASES[case])).values():
        assert spec["automountServiceAccountToken"] is False
        # A Service named loraplex would set LORAPLEX_PORT=tcp://… in every pod.
        assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("case", CASES)
def test_every_loraplex_variable_is_a_setting(case: str) -> None:
    known = {f"LORAPLEX_{name.upper()}" for name in Settings.model_fields}
    for spec in pod_specs(render(CASES[case])).values():
        assert {name for name in environment(spec) if name.startswith("LORAPLEX_")} <= known


@pytest.mark.parametrize("case", CASES)
def test_every_mount_has_its_volume_and_every_volume_its_mount(case: str) -> None:
    for spec in pod_specs(render(CASES[case])).values():
        (container,) = spec["containers"]
        mounted = {each["name"] for each in container.get("volumeMounts", [])}
        assert mounted == {each["name"] for each in spec.get("volumes", [])}


def test_the_worker_knows_neither_pepper_nor_database_nor_quotas() -> None:
    known = environment(pod_specs(render(PRODUCTION))["Deployment release-loraplex-worker"])
    assert not known.keys() & {"LORAPLEX_SECRET", "LORAPLEX_DATABASE_URL", "LORAPLEX_REDIS_URL"}


def test_gateways_share_the_store_of_quotas_that_is_given_and_none_otherwise() -> None:
    given = {"quotas": {"existingSecret": "valkey", "key": "address"}}
    known = environment(gateway(render(PRODUCTION | given))["spec"]["template"]["spec"])
    reference = known["LORAPLEX_REDIS_URL"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "valkey", "key": "address"}
    alone = environment(gateway(render({}))["spec"]["template"]["spec"])
    assert "LORAPLEX_REDIS_URL" not in alone


def test_the_gateway_does_not_know_the_streams_private_key() -> None:
    spec = gateway(render({}))["spec"]["template"]["spec"]
    (stream,) = (each["secret"] for each in spec["volumes"] if each["name"] == "stream")
    assert [item["key"] for item in stream["items"]] == ["tls.crt"]
    assert "LORAPLEX_WORKER_TLS_KEY" not in environment(spec)


@pytest.mark.parametrize("drain_s", [0, 30, 600])
def test_a_pod_gets_the_time_that_its_process_takes_to_drain(drain_s: int) -> None:
    values = {
        "gateway": {"drainTimeoutSeconds": drain_s, "preStopSeconds": 7},
        "worker": {"drainTimeoutSeconds": drain_s},
    }
    objects = render(values)
    ends = {}
    for name, deployment in (("gateway", gateway(objects)), ("worker", worker(objects))):
        spec = deployment["spec"]["template"]["spec"]
        ends[name] = spec["terminationGracePeriodSeconds"]
        told_s = environment(spec)["LORAPLEX_DRAIN_TIMEOUT_S"]["value"]
        assert float(told_s) == drain_s
    # Requests end or are broken off, then they are settled or given up.
    settle_s = 2 * BROKEN_OFF_S + SETTLE_TIMEOUT_S + GIVE_UP_S
    assert ends["gateway"] >= 7 + drain_s + settle_s + 10
    assert ends["worker"] >= drain_s + 10


def test_the_gateway_leaves_the_endpoints_before_it_stops_to_listen() -> None:
    (container,) = gateway(render({}))["spec"]["template"]["spec"]["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]


def test_the_gateways_probes_ask_its_routes() -> None:
    (container,) = gateway(render({}))["spec"]["template"]["spec"]["containers"]
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert probes == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}


@pytest.mark.parametrize("load_s", [60, 1200, 7000])
def test_both_start_probes_wait_for_the_model(load_s: int) -> None:
    objects = render({"model": {"loadSeconds": load_s}})
    waits = [
        probe["periodSeconds"] * probe["failureThreshold"]
        for deployment in (worker(objects), gateway(objects))
        for probe in [deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]]
    ]
    assert waits[0] >= load_s
    assert waits[1] > waits[0]
    deadlines = [each["spec"]["progressDeadlineSeconds"] for each in objects if _deploys(each)]
    assert min(deadlines) > load_s


def test_a_volume_of_one_node_keeps_the_gateway_on_the_workers_node() -> None:
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    objects = render({"gateway": {"affinity": affinity}})
    rendered = gateway(objects)["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    (term,) = rendered.pop("requiredDuringSchedulingIgnoredDuringExecution")
    assert {"podAffinity": rendered} == affinity
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = worker(objects)["spec"]["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_shared_volume_lets_gateways_run_on_any_node() -> None:
    spec = gateway(render(PRODUCTION))["spec"]["template"]["spec"]
    assert "affinity" not in spec
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


def test_what_is_given_for_placement_reaches_the_pods() -> None:
    spec = worker(render(GPU))["spec"]["template"]["spec"]
    asked = GPU["worker"]
    for key in ("nodeSelector", "tolerations", "runtimeClassName"):
        assert spec[key] == asked[key]
    spec = gateway(render(EVERYTHING))["spec"]["template"]["spec"]
    asked = EVERYTHING["gateway"]
    for key in ("affinity", "topologySpreadConstraints", "priorityClassName"):
        assert spec[key] == asked[key]


def test_the_workers_threads_follow_its_cpu_request() -> None:
    threads = environment(worker(render({}))["spec"]["template"]["spec"])["LORAPLEX_THREADS"]
    assert threads["valueFrom"]["resourceFieldRef"] == {"resource": "requests.cpu", "divisor": "1"}


def test_threads_that_are_set_come_before_the_cpu_request() -> None:
    known = environment(worker(render(EVERYTHING))["spec"]["template"]["spec"])
    assert known["LORAPLEX_THREADS"]["value"] == "6"


def test_without_a_cpu_request_the_worker_counts_cores_itself() -> None:
    known = environment(worker(render(CASES["bare"]))["spec"]["template"]["spec"])
    assert "LORAPLEX_THREADS" not in known


def test_large_and_broken_numbers_arrive_as_python_reads_them() -> None:
    values = {
        "gateway": {"settings": {"LORAPLEX_KEEPALIVE_S": 0.25, "LORAPLEX_BODY_TIMEOUT_S": 45}},
        "worker": {"settings": {"LORAPLEX_KV_MEMORY_BYTES": 141_733_920_768}},
    }
    objects = render(values)
    asked = environment(gateway(objects)["spec"]["template"]["spec"])
    assert asked["LORAPLEX_KEEPALIVE_S"]["value"] == "0.25"
    assert math.isclose(float(asked["LORAPLEX_BODY_TIMEOUT_S"]["value"]), 45)
    asked = environment(worker(objects)["spec"]["template"]["spec"])
    assert int(asked["LORAPLEX_KV_MEMORY_BYTES"]["value"]) == 141_733_920_768


def test_the_model_is_at_the_same_place_in_worker_and_gateway() -> None:
    objects = render(GPU)
    for deployment in (worker(objects), gateway(objects)):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        assert mounts["model"] == {"name": "model", "mountPath": "/models", "readOnly": True}
        assert mounts["data"]["mountPath"] == "/var/lib/loraplex"


def test_an_image_is_named_by_digest_where_one_is_given() -> None:
    objects = render(EVERYTHING)
    (container,) = gateway(objects)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry/gateway@sha256:{'a' * 64}"
    (container,) = worker(objects)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "loraplex-worker:0.1.0"


def test_the_test_pod_uses_the_key_that_it_is_given() -> None:
    known = environment(one(render(EVERYTHING), "Pod", "smoke")["spec"])
    assert known["TENANT_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "tenant-key", "key": "key"}
    assert known["GATEWAY"]["value"] == "lora:8080"


@pytest.mark.parametrize("case", CASES)
def test_a_container_that_ends_says_why_in_its_status(case: str) -> None:
    for spec in pod_specs(render(CASES[case])).values():
        assert spec["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def _deploys(each: dict) -> bool:
    return each["kind"] == "Deployment"
