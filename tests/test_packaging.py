"""Nothing hides the standard library, and the wheel holds what the tree holds."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("adapters", "engine", "kernels", "migrations", "platform", "tenants")
SHIPPED = {
    *(".cpp", ".h"),
    *(".py", ".html", ".css", ".js", ".json", ".jinja", ".lua"),
    *(".mako", ".safetensors", ".svg", ".txt"),
}


def shipped_files() -> set[str]:
    return {
        f"loraplex/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and (path.suffix in SHIPPED or path.name == "py.typed")
    }


def test_no_code_folder_has_an_init_file_that_would_hide_the_standard_library() -> None:
    assert [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")] == []


@pytest.mark.parametrize("code", ["import platform, transformers; platform.system()"])
def test_the_standard_library_wins_over_folders_at_the_root(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_pytest_starts_as_a_module_at_the_root() -> None:
    subprocess.run([sys.executable, "-m", "pytest", "--version"], cwd=ROOT, check=True)


def test_the_wheel_holds_exactly_the_files_of_the_tree(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if name.startswith("loraplex/")}
    assert packed == shipped_files()
