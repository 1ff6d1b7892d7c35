"""Reads Dockerfiles as far as ours go: instructions, stages, what each copies and runs."""

import re
from dataclasses import dataclass
from pathlib import Path

INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "CMD"}
CONTINUED = re.compile(r"\\\n\s*")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continued lines joined."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: the image that it starts from, its name, and what follows."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]

    def texts(self, name: str) -> list[str]:
        """What follows each instruction of this name."""
        return [each.text for each in self.instructions if each.name == name]


def read_stages(path: Path) -> list[Stage]:
    """The stages of a file. Raises ValueError for an instruction that is not known here."""
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for each in _instructions(path.read_text()):
        if each.name == "FROM":
            base, _, name = each.text.partition(" AS ")
            stages.append(Stage(_filled(base, arguments), name, ()))
        elif each.name == "ARG" and not stages:
            key, _, value = each.text.partition("=")
            arguments[key] = value
        else:
            last = stages.pop()
            stages.append(Stage(last.base, last.name, (*last.instructions, each)))
    return stages


def _instructions(text: str) -> list[Instruction]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    joined = CONTINUED.sub(" ", "\n".join(lines))
    found = [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]
    unknown = {each.name for each in found} - INSTRUCTIONS
    if unknown:
        raise ValueError(f"unknown instructions: {sorted(unknown)}")
    return found


def _filled(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], text)
