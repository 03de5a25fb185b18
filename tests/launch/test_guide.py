"""docs/WRITE_YOUR_OWN.md does what it says: its files are written, its commands run, their output is compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide import consoles, execute

pytestmark = pytest.mark.quick

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "WRITE_YOUR_OWN.md"
VARIES, GAP = "<!-- varies -->", "…"


def plain(lines: list[str]) -> list[str]:
    """Return lines without what differs from run to run: decimals, the width of columns, empty lines."""
    blurred = (re.sub(r"\d+\.\d+(?= s$|$)", "#", line.strip()) for line in lines)
    return [re.sub(r"─+", "─", re.sub(r" +", " ", line)) for line in blurred if line]


def agree(shown: list[str], got: list[str]) -> bool:
    """Tell whether the output is that of the guide, where a line of … stands for any lines."""
    if not shown:
        return not got
    if shown[0] == GAP:
        return any(agree(shown[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and shown[0] == got[0] and agree(shown[1:], got[1:])


@pytest.mark.parametrize("console", consoles(GUIDE.read_text()), ids=lambda c: re.sub(r"\W+", "-", c.commands[0][0]))
def test_the_guide(console, tmp_path):
    console.write(tmp_path)
    for command, shown in console.commands:
        status, output = execute(command, tmp_path)
        wrong = "--load broken.py" in command or "arms=0" in command
        assert (status != 0) == wrong, output
        if console.varies:
            assert output
        else:
            assert agree(plain(shown), plain(output.split("\n"))), f"$ {command}\n{output}"


def test_the_guide_is_read_whole():
    text = GUIDE.read_text()
    blocks = consoles(text)
    assert sum(len(block.commands) for block in blocks) == len(re.findall(r"^\$ ", text, re.MULTILINE)) > 8
    assert [block.varies for block in blocks].count(True) == text.count(VARIES) == 1
    assert {"starfish.py", "use.py"} == set(blocks[-1].files)


@pytest.mark.parametrize(
    ("shown", "got", "same"),
    [
        ("a 1.5 s", "a  12.25 s", True),
        ("a 1-3", "a 1-4", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("", "a", False),
        ("a", "", False),
    ],
)
def test_output_is_compared(shown, got, same):
    assert agree(plain(shown.split("\n")), plain(got.split("\n"))) is same
