"""Guides that are run: the files they write, their commands, and the output they show.

A block ```python NAME is a file, a block ```console has commands after `$ `, each with its output.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import launcher

FENCE = re.compile(r"(<!-- varies -->\n)?^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Console:
    """A block of commands, each with the output shown, and the files that the guide has written before it."""

    commands: list[tuple[str, list[str]]]
    varies: bool
    files: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write the files."""
        for name, content in self.files.items():
            (directory / name).write_text(content)


def consoles(text: str) -> list[Console]:
    """Return the console blocks of a guide, in order."""
    blocks, files = [], {}
    for varies, language, name, body in FENCE.findall(text):
        if language == "console":
            blocks.append(Console(commands(body), bool(varies), dict(files)))
        elif name:
            files[name] = body
    return blocks


def commands(body: str) -> list[tuple[str, list[str]]]:
    """Return each command with the lines that follow it."""
    first, *parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
    assert not first, "a console block begins with a command"
    return [(part.split("\n")[0], part.split("\n")[1:]) for part in parts]


def execute(command: str, directory: Path) -> tuple[int, str]:
    """Run one command as a reader would, mpiexec with what this MPI's launcher needs; NAME=VALUE may lead."""
    words = shlex.split(command)
    variables = {}
    while re.match(r"\w+=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    line = ["bash", "-c", command]
    if words[0] == "mpiexec":
        line = launcher.command(int(words[words.index("-n") + 1]), words[words.index("-n") + 2 :])
    output = directory / "output"
    with output.open("wb") as file:
        inside = ["bash", "-c", 'cd "$0" && exec "$@"', str(directory), *line]
        status = launcher.run_group(inside, 50, file, variables)
    assert status is not None, f"{command} had to be killed; it said {output.read_text()}"
    return status, output.read_text()
