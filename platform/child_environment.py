"""How settings reach a process that this one starts."""

import json
import os

from pydantic import SecretStr

from loraplex.platform.settings import Settings


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment in which a child process reads the same settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LORAPLEX_")}
    for name, value in settings:
        if value is not None:
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            is_json = isinstance(text, dict | list)
            written = json.dumps(text, default=dict) if is_json else str(text)
            environment[f"LORAPLEX_{name.upper()}"] = written
    return environment
