"""docs/ALGORITHMS.md, its pictures and README's table are those of the registry, and links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mpicoll.describe import generate
from mpicoll.describe.generate import changes, pages, pictured, readme, variants, write
from mpicoll.schedules.registry import _REGISTRY, Requirement, algorithm, find, registered

ROOT = Path(__file__).resolve().parents[2]
EACH, ALL = 60_000, 1_500_000  # bytes of pictures


@pytest.fixture(scope="module")
def written():
    return pages()


def test_docs_are_current():
    changed = list(changes(ROOT))
    assert not changed, f"not as the registry has it: {', '.join(changed)}; run `make docs`"


@pytest.mark.slow
def test_the_same_is_written_each_time(written):
    """In another process too, where sets and dictionaries may have another order."""
    code = (
        "import hashlib; from mpicoll.describe.generate import pages; "
        "print(hashlib.sha256(repr(pages()).encode()).hexdigest())"
    )
    done = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert done[0].stdout == done[1].stdout != "", done[0].stderr


def test_every_algorithm_has_a_row_and_a_picture(written):
    page = written["ALGORITHMS.md"]
    for entry in registered():
        section = page.split(f"\n## {entry.collective.name}\n")[1].split("\n## ")[0]
        (row,) = [line for line in section.splitlines() if line.startswith(f"| **{entry.name}**")]
        assert entry.claims.idea.rstrip(".") in row and entry.claims.source in row
        links = re.findall(r"\((pictures/[^)]*)\)", row)
        assert len(links) == len(variants(entry)) and set(links) <= set(written)
        assert entry.requires is None or entry.requires.words in row
        assert all(f"`{name}=" in row for name in entry.parameters)


def test_every_row_has_as_many_cells_as_its_head(written):
    for table in re.findall(r"(?:^\|.*\|\n)+", written["ALGORITHMS.md"], re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_numbers_are_those_that_were_measured(written):
    row = next(line for line in written["ALGORITHMS.md"].splitlines() if "allreduce-ring.svg" in line)
    assert "| `2 (p − 1)` | `2 n (p − 1) / p` | 14 steps, 1.75 n | 24 steps, 1.85 n |" in row
    row = next(line for line in written["ALGORITHMS.md"].splitlines() if "**halving_doubling**" in line)
    assert "fold: 8 steps, 2.75 n<br>binary_blocks: 8 steps, 2 n" in row


def test_pictures_are_small_and_well_formed(written):
    pictures = {path: content for path, content in written.items() if path.endswith(".svg")}
    sizes = {path: len(content.encode()) for path, content in pictures.items()}
    assert max(sizes.values()) <= EACH and sum(sizes.values()) <= ALL
    for content in pictures.values():
        ElementTree.fromstring(content)


def test_pictures_show_what_there_is_to_see():
    assert pictured(find("allreduce", "ring"), {}).p == 5
    assert pictured(find("allreduce", "halving_doubling"), {"form": "binary_blocks"}).p == 13
    assert len(pictured(find("allreduce", "hierarchical"), {}).resolved["groups"]) > 1


def test_an_algorithm_that_is_not_for_every_p_has_its_row():
    @algorithm("barrier", requires=Requirement("two ranks | nothing", lambda p: p in (2, 16)), name="choosy")
    def choosy(p, rank):
        """A barrier that is choosy.

        Steps: lg(p)
        Bytes per rank: 0
        Scratch: 0
        Cost: none
        Source: nobody
        Excess: a lot
        """
        return find("barrier", "dissemination")(p, rank)

    try:
        written = pages()
    finally:
        del _REGISTRY["barrier"]["choosy"]
    row = next(line for line in written["ALGORITHMS.md"].splitlines() if line.startswith("| **choosy**"))
    assert row.endswith(r"| `lg p` | `0` | – | – | `0` | two ranks \| nothing | – | nobody | a lot |")
    assert "p = 2:" in written["pictures/barrier-choosy.svg"]


@pytest.mark.slow
def test_what_is_not_current_is_written(tmp_path):
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "docs" / "pictures" / "bcast-gone.svg").write_text("<svg/>")
    (tmp_path / "README.md").write_text(f"before\n{generate.BEGIN}\nold\n{generate.END}\nafter\n")
    changed = write(tmp_path)
    assert {"README.md", "docs/ALGORITHMS.md", "docs/pictures/bcast-gone.svg"} <= set(changed)
    assert not (tmp_path / "docs" / "pictures" / "bcast-gone.svg").exists()
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert all(name in text for names in _REGISTRY.values() for name in names)
    assert readme(text) == text and write(tmp_path) == []


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"
