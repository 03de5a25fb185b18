"""docs/ALGORITHMS.md, its pictures and README's table are those of the registry, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from unit.every import barrier

from mpicoll.describe import generate
from mpicoll.describe.generate import changes, pages, readme, variants, write
from mpicoll.schedules.registry import _REGISTRY, Requirement, registered

ROOT = Path(__file__).resolve().parents[2]
EACH, ALL = 60_000, 1_500_000  # bytes of pictures


@pytest.fixture(scope="module")
def written():
    return pages()


@pytest.fixture
def barriers(monkeypatch, registry):
    """Generate the pages of barriers alone, since all algorithms take seconds."""
    monkeypatch.setattr(generate, "registered", lambda: [x for x in registered() if x.collective.name == "barrier"])


@pytest.mark.once
def test_docs_are_current(written, monkeypatch):
    """Compare the files in the tree with those that the registry gives, whatever the order of its sets."""
    monkeypatch.setattr(generate, "pages", lambda: written)
    changed = list(changes(ROOT))
    assert not changed, f"not as the registry has it: {', '.join(changed)}; run `make docs`"


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


def test_pictures_are_small_and_well_formed(written):
    pictures = {path: content for path, content in written.items() if path.endswith(".svg")}
    sizes = {path: len(content.encode()) for path, content in pictures.items()}
    assert max(sizes.values()) <= EACH and sum(sizes.values()) <= ALL
    for content in pictures.values():
        ElementTree.fromstring(content)
        assert not re.search(r"href=|@import|<script|<image", content)


def test_an_algorithm_that_is_not_for_every_p_has_its_row(barriers):
    needs = Requirement("two ranks | nothing", lambda p: p in (2, 16))
    barrier("choosy", excess="a lot", requires=needs)
    written = pages()
    row = next(line for line in written["ALGORITHMS.md"].splitlines() if line.startswith("| **choosy**"))
    assert row.endswith(r"| `lg p` | `0` | – | – | `0` | two ranks \| nothing | – | none | a lot |")
    assert "p = 2:" in written["pictures/barrier-choosy.svg"]


def test_outdated_files_are_written(barriers, tmp_path):
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "docs" / "pictures" / "bcast-gone.svg").write_text("<svg/>")
    (tmp_path / "README.md").write_text(f"before\n{generate.BEGIN}\nold\n{generate.END}\nafter\n")
    changed = write(tmp_path)
    assert {"README.md", "docs/ALGORITHMS.md", "docs/pictures/bcast-gone.svg"} <= set(changed)
    assert not (tmp_path / "docs" / "pictures" / "bcast-gone.svg").exists()
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert all(name in text for name in _REGISTRY["barrier"])
    assert readme(text) == text and write(tmp_path) == []


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"
