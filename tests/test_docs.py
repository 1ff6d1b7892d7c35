import ast
import re
from pathlib import Path

from loraplex.platform.settings_reference import settings_reference

ROOT = Path(__file__).parent.parent


def test_the_settings_page_documents_every_setting_as_it_is() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_reference()


def test_the_architecture_page_stays_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_every_document_that_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    names = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "public-faults.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 50
    assert named - there == set()


def test_every_metric_is_documented() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    documented = {name.removesuffix("_total") for name in re.findall(r"`(loraplex_\w+)", text)}
    made = {name for path in _sources() for name in _metrics_of(ast.parse(path.read_text()))}
    assert len(made) > 50
    assert made - documented == set()


def _sources() -> list[Path]:
    packages = (path for path in (ROOT / "src" / "loraplex").iterdir() if path.is_dir())
    return [path for package in packages for path in package.resolve().rglob("*.py")]


def _metrics_of(tree: ast.Module) -> set[str]:
    """First arguments of all calls that are names of metrics, as they are made: without `_total`,
    and with a description."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1)
    firsts = (call.args[0] for call in calls if _is_text(call.args[1]))
    names = (first.value for first in firsts if isinstance(first, ast.Constant))
    return {name for name in names if re.fullmatch(r"loraplex_\w+", str(name))}


def _is_text(argument: ast.expr) -> bool:
    words = str(argument.value).split() if isinstance(argument, ast.Constant) else ()
    return len(words) > 1 and not words[-1].isupper()  # as statements of SQL are
