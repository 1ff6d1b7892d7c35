"""The chart renders, and what it renders is valid for every Kubernetes version that it accepts."""

import re

import kubernetes_validate
import pytest
import yaml
from tests.helm.chart import CASES, CHART, HELMS, KUBERNETES, ROOT, render, run_helm

KINDS = {
    "Deployment",
    "Job",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Secret",
    "Service",
    "ServiceAccount",
}
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
RANDOM = {"token", "tls.crt", "tls.key"}


def check(document: dict, version: str) -> None:
    """Raise unless the document is valid; a kind without a schema is invalid too."""
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_helm_lints_the_chart_without_a_warning(case: str) -> None:
    values = yaml.safe_dump(CASES[case])
    linted = run_helm(HELMS[0], "lint", "--strict", str(CHART), "-f", "-", stdin=values)
    assert linted.returncode == 0, linted.stdout
    assert "[WARNING]" not in linted.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid_for_the_kubernetes_version(case: str, version: str) -> None:
    for document in render(CASES[case]):
        check(document, version)


@pytest.mark.parametrize("version", KUBERNETES)
def test_a_field_that_kubernetes_does_not_know_is_found(version: str) -> None:
    document = render({})[0] | {"unknown": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(document, version)


def test_a_kind_that_kubernetes_does_not_know_is_found() -> None:
    document = {"apiVersion": "v1", "kind": "Unknown", "metadata": {"name": "a"}}
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        check(document, KUBERNETES[0])


@pytest.mark.parametrize("case", CASES)
def test_only_known_kinds_are_rendered(case: str) -> None:
    assert {document["kind"] for document in render(CASES[case])} <= KINDS


@pytest.mark.parametrize("case", CASES)
def test_both_helms_render_the_same(case: str) -> None:
    four, three = (_without_random(render(CASES[case], helm)) for helm in HELMS)
    assert four == three


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("release", ["release", "r" * 53])
def test_every_name_is_one_that_kubernetes_takes(case: str, release: str) -> None:
    names = [document["metadata"]["name"] for document in render(CASES[case], release=release)]
    assert [name for name in names if not DNS_LABEL.fullmatch(name)] == []


@pytest.mark.parametrize("case", CASES)
def test_no_two_objects_share_kind_and_name(case: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in render(CASES[case])]
    assert len(names) == len(set(names))


def test_the_chart_installs_the_version_that_it_stands_beside() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project
    assert chart["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


def _without_random(objects: list[dict]) -> list[dict]:
    for each in objects:
        if each["kind"] == "Secret":
            each["data"] = {key: key for key in each["data"] if key in RANDOM}
    return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))
