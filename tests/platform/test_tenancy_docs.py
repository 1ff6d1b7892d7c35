"""The page about roles has the table that the code has."""

from pathlib import Path

from loraplex.tenants.roles import ALL, PLATFORM_GRANTS, TENANT_GRANTS
from loraplex.tenants.scoped_limits import KINDS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tenancy.md").read_text()


def role_table() -> str:
    """Permissions by role; `read_only` is told apart by where it is held."""
    columns = [(role, PLATFORM_GRANTS[role]) for role in PLATFORM_GRANTS]
    columns += [
        (f"{role} in a tenant" if role == "read_only" else role, TENANT_GRANTS[role])
        for role in TENANT_GRANTS
    ]
    lines = ["| | " + " | ".join(name for name, _ in columns) + " |", "|---" * 8 + "|"]
    for permission in sorted(ALL):
        cells = ("✓" if permission in held else "" for _, held in columns)
        lines.append(f"| `{permission}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_documented_roles_are_those_of_the_code() -> None:
    assert role_table() in DOCUMENT


def test_all_dimensions_of_limits_are_documented() -> None:
    assert [dimension for dimension in KINDS if f"`{dimension}`" not in DOCUMENT] == []
