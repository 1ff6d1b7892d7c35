"""What cannot work is refused before anything is installed, with a message that says what helps."""

import json
from typing import Any

import pytest
import yaml
from tests.helm.chart import CHART, HELMS, PRODUCTION, ChartRefused, render

from loraplex.platform.settings import Settings

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OPEN = {"tolerations", "affinity", "topologySpreadConstraints", "claims", "valueFrom", "global"}
OPEN |= {"gatewayFrom", "workerEgress"}
"""Values that are Kubernetes' own objects, or Helm's; they are passed on as they are."""
OWNED = {"data_dir", "database_url", "secret", "host", "port", "model", "drain_timeout_s"}
OWNED |= {"worker_address", "worker_token", "worker_tls_cert", "worker_tls_key", "redis_url"}
OWNED |= {"oidc_client_secret"}
"""Settings that follow from other values of the chart."""
BOTH = {"LORAPLEX_LOG_LEVEL", "LORAPLEX_ADAPTERS_URL", "LORAPLEX_ADAPTER_CACHE_BYTES"}
"""Settings that gateway and worker may each have."""

CANNOT_WORK = {
    "several gateways on SQLite": (
        {"gateway": {"replicas": 2}},
        "set database.existingSecret",
    ),
    "several gateways on a volume of one node": (
        PRODUCTION | {"data": {"accessMode": "ReadWriteOnce"}},
        "set data.accessMode to ReadWriteMany",
    ),
    "several gateways that each count limits": (
        PRODUCTION | {"quotas": {}},
        "up to 3 times their limits: set quotas.existingSecret to a Secret with a Redis URL",
    ),
    "limits that are both shared and not": (
        PRODUCTION | {"gateway": {"replicas": 3, "limitsPerReplica": True}},
        "leave one of them out",
    ),
    "SQLite on a network file system": (
        {"data": {"accessMode": "ReadWriteMany"}},
        "set database.existingSecret",
    ),
    "a database whose pepper is on a volume": (
        {"database": {"existingSecret": "postgres"}},
        "name it in pepper.existingSecret",
    ),
    "a model's volume beside the model": (
        {"model": {"existingClaim": "models"}},
        "set model.name to the model's folder under it",
    ),
    "a hub that the worker may not reach": (
        {"model": {"name": "org/model"}},
        "allow it in networkPolicy.workerEgress",
    ),
}
WRONG_VALUES = {
    "an unknown value": {"replicas": 2},
    "an unknown value of a part": {"gateway": {"replica": 2}},
    "a value of the wrong kind": {"gateway": {"replicas": "two"}},
    "no gateway": {"gateway": {"replicas": 0}},
    "several workers": {"worker": {"replicas": 2}},
    "a setting of the worker at the gateway": {"gateway": {"settings": {"LORAPLEX_DTYPE": "auto"}}},
    "a setting that the chart decides": {"gateway": {"settings": {"LORAPLEX_PORT": 1}}},
    "a setting out of its range": {"worker": {"settings": {"LORAPLEX_MAX_RUNNING": 0}}},
    "a setting in the plain environment": {
        "worker": {"extraEnv": [{"name": "LORAPLEX_MODEL", "value": "demo"}]}
    },
    "a volume that one pod alone can mount": {"data": {"accessMode": "ReadWriteOncePod"}},
    "a relative model folder": {"model": {"name": "./model"}},
    "a digest that is none": {"worker": {"image": {"digest": "latest"}}},
}


@pytest.mark.parametrize("case", CANNOT_WORK)
def test_a_combination_that_cannot_work_is_refused_with_a_remedy(case: str) -> None:
    values, remedy = CANNOT_WORK[case]
    with pytest.raises(ChartRefused) as refused:
        render(values)
    assert remedy in str(refused.value)


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_wrong_value_is_refused(case: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(WRONG_VALUES[case])
    assert "schema" in str(refused.value)


@pytest.mark.parametrize("helm", HELMS)
def test_both_helms_know_the_schema(helm: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(WRONG_VALUES["an unknown value of a part"], helm)
    assert "replica" in str(refused.value)


def test_the_remedies_work() -> None:
    render({"model": {"name": "org/model"}, "networkPolicy": {"enabled": False}})
    render({"model": {"name": "/models", "existingClaim": "models"}})
    render(PRODUCTION | {"data": {"accessMode": "ReadWriteOnce"}, "gateway": {"replicas": 1}})


def test_the_schema_lets_no_unknown_value_through() -> None:
    loose = [path for path, schema in _objects(SCHEMA, "") if _is_loose(schema)]
    assert loose == []


def test_the_schema_knows_exactly_the_values_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert _missing(values, SCHEMA, "") == []
    assert set(SCHEMA["properties"]) - {"global"} == set(values)


def test_every_setting_is_the_charts_or_of_gateway_or_worker_as_the_code_defines_it() -> None:
    expected = {
        f"LORAPLEX_{name.upper()}": _schema_of(name)
        for name in Settings.model_fields
        if name not in OWNED
    }
    parts = SCHEMA["properties"]
    given = [parts[part]["properties"]["settings"]["properties"] for part in ("gateway", "worker")]
    assert given[0] | given[1] == expected, (
        "add a new setting to values.schema.json, under gateway.settings or worker.settings"
    )
    assert set(given[0]) & set(given[1]) == BOTH


def _schema_of(name: str) -> dict:
    """The JSON schema of a setting, less what is only documentation."""
    whole = Settings.model_json_schema()
    schema = whole["properties"][name]
    if "anyOf" in schema:
        (schema,) = (each for each in schema["anyOf"] if each != {"type": "null"})
    return _undocumented(schema, whole.get("$defs", {}))


def _undocumented(schema: Any, definitions: dict) -> Any:
    if isinstance(schema, list):
        return [_undocumented(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _undocumented(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {
        key: _undocumented(value, definitions)
        for key, value in schema.items()
        if key not in {"title", "description", "default"}
    }


def _objects(schema: dict, path: str) -> list[tuple[str, dict]]:
    """All schemas of objects, but for those that are passed on."""
    found = [(path, schema)] if schema.get("type") == "object" else []
    for name, child in schema.get("properties", {}).items():
        if name not in OPEN:
            found += _objects(child, f"{path}.{name}")
    return found + (_objects(schema["items"], f"{path}[]") if "items" in schema else [])


def _is_loose(schema: dict) -> bool:
    """True unless unknown names are refused, or names are free and values have a type."""
    allowed = schema.get("additionalProperties", True)
    return allowed is True or (allowed is not False and "properties" in schema)


def _missing(values: dict, schema: dict, path: str) -> list[str]:
    """Names that a schema has and the documented values lack, or the other way round."""
    known = schema.get("properties", {})
    if not known or path.endswith((".settings", ".resources")):
        return []
    names = set(known) ^ set(values) - {"global"} if path else set(values) - set(known)
    below = [
        problem
        for name in set(known) & set(values)
        if isinstance(values[name], dict)
        for problem in _missing(values[name], known[name], f"{path}.{name}")
    ]
    return [f"{path}.{name}" for name in sorted(names)] + below
