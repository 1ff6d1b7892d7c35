"""Which processor this is."""

import platform
from pathlib import Path


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, with family and model where the name alone says little."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if "model name" not in fields:
        return platform.machine()
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    return f"{fields['model name']} ({', '.join(numbers)})" if numbers else fields["model name"]
