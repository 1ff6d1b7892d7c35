"""How the chart's objects refer to each other, and what depends on the database."""

import pytest
from tests.helm.chart import CASES, EVERYTHING, PRODUCTION, gateway, one, pod_specs, render, worker

SELECTING = {"Service", "NetworkPolicy", "PodDisruptionBudget"}


@pytest.mark.parametrize("case", CASES)
def test_every_selector_finds_exactly_one_kind_of_pod(case: str) -> None:
    objects = render(CASES[case])
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in objects if _deploys(each)]
    for each in objects:
        if each["kind"] in SELECTING or _deploys(each):
            wanted = _selector(each)
            assert sum(wanted.items() <= labels.items() for labels in pods) == 1, each["metadata"]


@pytest.mark.parametrize("case", CASES)
def test_a_selector_holds_nothing_that_an_upgrade_changes(case: str) -> None:
    names = {f"app.kubernetes.io/{part}" for part in ("name", "instance", "component")}
    for deployment in filter(_deploys, render(CASES[case])):
        assert set(deployment["spec"]["selector"]["matchLabels"]) == names
        # A label that changes with the chart would make every upgrade load the model again.
        assert set(deployment["spec"]["template"]["metadata"]["labels"]) == names


def test_the_gateway_reaches_the_worker_through_its_service() -> None:
    objects = render(EVERYTHING)
    (container,) = gateway(objects)["spec"]["template"]["spec"]["containers"]
    asked = {each["name"]: each.get("value") for each in container["env"]}
    service = one(objects, "Service", "-worker")
    port = service["spec"]["ports"][0]["port"]
    assert asked["LORAPLEX_WORKER_ADDRESS"] == f"tcp://{service['metadata']['name']}:{port}"
    (container,) = worker(objects)["spec"]["template"]["spec"]["containers"]
    asked = {each["name"]: each.get("value") for each in container["env"]}
    assert asked["LORAPLEX_WORKER_ADDRESS"] == f"tcp://0.0.0.0:{port}"


def test_only_gateways_reach_the_worker_and_it_reaches_nothing() -> None:
    policy = one(render({}), "NetworkPolicy", "-worker")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    labels = gateway(render({}))["spec"]["template"]["metadata"]["labels"]
    assert peer == {"podSelector": {"matchLabels": labels}}
    assert rule["ports"] == [{"protocol": "TCP", "port": "stream"}]


def test_who_may_reach_the_gateway_can_be_limited_and_the_test_pod_still_may() -> None:
    objects = render(EVERYTHING)
    (rule,) = one(objects, "NetworkPolicy", "lora")["spec"]["ingress"]
    given, test = rule["from"]
    assert given == {"namespaceSelector": {}}
    labels = one(objects, "Pod", "smoke")["metadata"]["labels"]
    assert test["podSelector"]["matchLabels"].items() <= labels.items()


def test_on_sqlite_there_is_no_job_and_never_a_second_gateway() -> None:
    objects = render({})
    assert "Job" not in {each["kind"] for each in objects}
    assert gateway(objects)["spec"]["strategy"] == {"type": "Recreate"}
    assert gateway(objects)["spec"]["replicas"] == 1


def test_on_postgresql_gateways_are_replaced_one_by_one_after_the_migration() -> None:
    objects = render(PRODUCTION)
    assert gateway(objects)["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }
    hooks = one(objects, "Job")["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == "pre-install,pre-upgrade"


@pytest.mark.parametrize("values", [PRODUCTION, EVERYTHING])
def test_the_migration_uses_nothing_that_the_release_brings(values: dict) -> None:
    objects = render(values)
    (spec,) = (spec for name, spec in pod_specs(objects).items() if name.startswith("Job"))
    brought = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert ("ServiceAccount", spec["serviceAccountName"]) not in brought
    (container,) = spec["containers"]
    secrets = [
        each["valueFrom"]["secretKeyRef"]["name"]
        for each in container["env"]
        if "valueFrom" in each
    ]
    assert secrets == ["postgres"]
    assert [set(volume) for volume in spec["volumes"]] == [{"name", "emptyDir"}]


def test_the_migration_can_be_left_to_others() -> None:
    objects = render(PRODUCTION | {"migration": {"enabled": False}})
    assert "Job" not in {each["kind"] for each in objects}


@pytest.mark.parametrize("case", CASES)
def test_no_disruption_budget_holds_up_a_drain(case: str) -> None:
    objects = render(CASES[case])
    replicas = gateway(objects)["spec"]["replicas"]
    budgets = [each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == (1 if replicas > 1 else 0)
    for budget in budgets:
        assert budget["maxUnavailable"] == 1
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("case", CASES)
def test_there_is_one_worker_and_the_old_one_goes_first(case: str) -> None:
    deployment = worker(render(CASES[case]))
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_data_outlives_the_release() -> None:
    claim = one(render({}), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("case", CASES)
def test_what_pods_refer_to_is_of_the_release_or_was_given(case: str) -> None:
    values = CASES[case]
    objects = render(values)
    brought = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for spec in pod_specs(objects).values():
        for kind, name in _references(spec):
            assert (kind, name) in brought or name in repr(values) or name == "default"


def _deploys(each: dict) -> bool:
    return each["kind"] == "Deployment"


def _selector(each: dict) -> dict:
    spec = each["spec"]
    if each["kind"] == "Service":
        return spec["selector"]
    return (spec.get("selector") or spec["podSelector"])["matchLabels"]


def _references(spec: dict) -> list[tuple[str, str]]:
    volumes = spec.get("volumes", [])
    sources = [each.get("valueFrom", {}) for each in spec["containers"][0]["env"]]
    return [
        ("ServiceAccount", spec["serviceAccountName"]),
        *(("Secret", each["secret"]["secretName"]) for each in volumes if "secret" in each),
        *(
            ("PersistentVolumeClaim", each["persistentVolumeClaim"]["claimName"])
            for each in volumes
            if "persistentVolumeClaim" in each
        ),
        *(("Secret", each["secretKeyRef"]["name"]) for each in sources if "secretKeyRef" in each),
    ]
