"""The images cannot be built here; their files are checked, and what the commands in them need."""

import fnmatch
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.helm.chart import ROOT, gateway, render, worker
from tests.helm.dockerfile import Stage, read_stages

CONTAINERS = ROOT / "helm" / "containers"
IMAGES = ("gateway", "worker")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEVER_IN_THE_GATEWAY = {"torch", "triton", "transformers", "peft", "gguf"}


def stages(image: str) -> tuple[Stage, Stage]:
    build, final = read_stages(CONTAINERS / f"{image}.Dockerfile")
    return build, final


@pytest.mark.parametrize("image", IMAGES)
def test_only_what_was_built_reaches_the_final_image(image: str) -> None:
    build, final = stages(image)
    assert final.texts("COPY") == [f"--from={build.name} /opt/loraplex /opt/loraplex"]
    assert "pip" not in " ".join(final.texts("RUN"))
    assert build.base == final.base


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_runs_as_the_user_that_the_chart_names(image: str) -> None:
    deployment = {"gateway": gateway, "worker": worker}[image](render({}))
    security = deployment["spec"]["template"]["spec"]["securityContext"]
    _, final = stages(image)
    assert final.texts("USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert final.instructions[-1].name == "CMD"


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_starts_what_the_chart_starts(image: str) -> None:
    deployment = {"gateway": gateway, "worker": worker}[image](render({}))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    _, final = stages(image)
    assert [json.loads(text) for text in final.texts("CMD")] == [container["command"]]
    assert [int(text) for text in final.texts("EXPOSE")] == [
        port["containerPort"] for port in container["ports"]
    ]
    assert container["command"][0] in PROJECT["scripts"]


@pytest.mark.parametrize("image", IMAGES)
def test_every_package_is_pinned(image: str) -> None:
    build, _ = stages(image)
    installs = [text for text in build.texts("RUN") if " install " in text]
    assert installs
    assert all(" -c constraints.txt " in text for text in installs)
    assert build.base.count("-") == 2, "a Python version and a Debian release"


def test_gateway_and_worker_install_their_own_parts() -> None:
    assert stages("gateway")[0].texts("RUN")[-1].endswith(" constraints.txt .")
    assert any(text.endswith('".[worker]"') for text in stages("worker")[0].texts("RUN"))
    assert "worker" in PROJECT["optional-dependencies"]


def test_the_images_python_is_one_that_the_project_supports() -> None:
    version = stages("gateway")[0].base.partition(":")[2].partition("-")[0]
    assert PROJECT["requires-python"] == f">={version}"


def test_the_build_sees_the_code_and_no_data() -> None:
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*"
    allowed = {line[1:] for line in rules if line.startswith("!")}
    links = {path.resolve().name for path in (ROOT / "src" / "loraplex").iterdir()}
    files = {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "constraints.txt"}
    assert allowed == links | files | {"src"}
    assert any(fnmatch.fnmatch("src/loraplex.egg-info", rule) for rule in rules)


@pytest.fixture(scope="module")
def gateway_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that the gateway's image would have, and no other."""
    folder = tmp_path_factory.mktemp("site-packages")
    for name in _installed_with(PROJECT["dependencies"]):
        package = importlib.metadata.distribution(name)
        # The first parts of the files' paths: packages, modules, metadata; ".." leads to scripts.
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(package.locate_file(top))
    (folder / "loraplex").symlink_to(ROOT / "src" / "loraplex")
    return folder


def test_the_gateways_packages_are_enough_for_its_commands(
    gateway_image: Path, tmp_path: Path
) -> None:
    for command in (
        ["gateway", "--help"],
        ["worker", "--help"],
        ["migrate"],
        ["tenant", "create", "initech"],
    ):
        done = _in_gateway_image(gateway_image, "loraplex.platform.cli.main", command, tmp_path)
        assert done.returncode == 0, done.stderr


def test_nothing_of_the_engines_packages_is_in_the_gateways_image(gateway_image: Path) -> None:
    names = {canonicalize_name(path.name) for path in gateway_image.iterdir()}
    assert names & NEVER_IN_THE_GATEWAY == set()
    assert {"fastapi", "tokenizers", "sqlalchemy"} <= names


def test_the_gateways_app_can_be_imported_in_its_image(gateway_image: Path, tmp_path: Path) -> None:
    done = _in_gateway_image(gateway_image, "loraplex.platform.gateway", [], tmp_path)
    assert done.returncode == 0, done.stderr


def _in_gateway_image(
    site_packages: Path, module: str, arguments: list[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a module with these packages alone: -S keeps this environment's own away."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site_packages),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LORAPLEX_DATA_DIR": str(folder / "data"),
    }
    return subprocess.run(
        [sys.executable, "-S", "-m", module, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _installed_with(requirements: list[str]) -> set[str]:
    """Names of all packages that these requirements bring, extras among them."""
    found: dict[str, set[str]] = {}
    wanted = [Requirement(text) for text in requirements]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras | {""}
        new = extras - found.setdefault(name, set())
        found[name] |= new
        if new:
            wanted += [
                each
                for each in map(Requirement, importlib.metadata.requires(name) or ())
                if each.marker is None
                or any(each.marker.evaluate({"extra": extra}) for extra in new)
            ]
    return set(found)
