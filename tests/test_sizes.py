"""Limits on the maximum: what is beautiful in the median must not be ugly in the maximum."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
FILES = [
    path
    for folder in ("adapters", "engine", "kernels", "migrations", "platform", "tenants", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
CPP_FILES = [
    path for path in sorted((ROOT / "kernels").rglob("*")) if path.suffix in {".cpp", ".h"}
]


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """All files, parsed once."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(tree)
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_no_file_is_longer_than_400_lines() -> None:
    assert CPP_FILES
    long = {str(path): len(path.read_text().splitlines()) for path in FILES + CPP_FILES}
    assert {path: lines for path, lines in long.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_60_lines(trees: dict[Path, ast.Module]) -> None:
    long = [
        f"{path}:{node.name}"
        for path in FILES
        if "versions" not in path.parts  # a migration is one list of statements
        for node in functions(trees[path])
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("path", ["engine/core.py:step"])
def test_the_engines_step_fits_on_one_screen(path: str, trees: dict[Path, ast.Module]) -> None:
    file, _, name = path.partition(":")
    (step,) = [node for node in functions(trees[ROOT / file]) if node.name == name]
    assert (step.end_lineno or 0) - step.lineno + 1 <= 30


def test_nothing_is_inherited_from_a_mixin_and_no_class_is_a_manager_or_helper(
    trees: dict[Path, ast.Module],
) -> None:
    forbidden = ("Mixin", "Manager", "Helper", "Util")
    names = [
        f"{path}:{node.name}"
        for path in FILES
        for node in ast.walk(trees[path])
        if isinstance(node, ast.ClassDef) and node.name.endswith(forbidden)
    ]
    assert names == []


def test_no_module_holds_mutable_state(trees: dict[Path, ast.Module]) -> None:
    """A table that its annotation makes read-only counts as immutable: mypy guards it."""
    mutable = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
    found = [
        f"{path}:{node.lineno}"
        for path in FILES
        if "tests" not in path.parts and "migrations" not in path.parts
        for node in trees[path].body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, mutable)
        if "__all__" not in ast.unparse(node)
        if not (isinstance(node, ast.AnnAssign) and "Mapping[" in ast.unparse(node.annotation))
    ]
    assert found == []
