"""The reference page of all settings, made from the settings themselves."""

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from loraplex.platform.settings import Settings

_HEAD = """# Settings

Every process reads its settings from environment variables. Some commands have options of the same
name for a few of them (`--help`), which come first. `LORAPLEX_URL`, the gateway's address, and
`LORAPLEX_KEY`, a tenant's key, are for commands that call a gateway, such as `loraplex adapter
upload`; servers pass over them. Any other variable `LORAPLEX_…` that is none of these is refused.
This page is made from `platform/settings.py` and `platform/worker_settings.py` by
`python -m loraplex.platform.settings_reference > docs/settings.md`.

| variable | default | meaning |
|---|---|---|
"""


def settings_reference() -> str:
    """All settings as a Markdown page."""
    rows = (_row(name, field) for name, field in Settings.model_fields.items())
    return _HEAD + "\n".join(rows) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    default = field.default
    shown = "–" if default is None or isinstance(default, SecretStr) else f"`{default}`"
    return f"| `LORAPLEX_{name.upper()}` | {shown} | {field.description} |"


if __name__ == "__main__":
    print(settings_reference(), end="")  # noqa: T201  a script whose output is the page
