"""The site has every page in its navigation and every public name in its reference; `make site` looks again."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mpicoll
from mpicoll import errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mpicoll"
NAVIGATION = (ROOT / "docs" / "site" / "navigation.yml").read_text()
API = (ROOT / "docs" / "API.md").read_text()
PAGES = [path for place in (ROOT, ROOT / "docs", ROOT / "docs" / "design") for path in sorted(place.glob("*.md"))]
NAVIGATED = re.findall(r"^(?:root| *- file): (\S+)$", NAVIGATION, re.MULTILINE)
GLOBS = re.findall(r"^ *- glob: (\S+)$", NAVIGATION, re.MULTILINE)
LISTED = set(re.findall(r"^   (mpicoll[\w.]*)$", API, re.MULTILINE))
EXPORTED = [name for name in mpicoll.__all__ if not name.startswith("__")]


def definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """Read a class or a function without importing it, since MPI would start."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    matches = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
    return next(matches, None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_is_in_the_navigation(page):
    name = page.relative_to(ROOT).with_suffix("")
    assert str(name) in NAVIGATED or any(map(name.match, GLOBS))


def test_everything_in_the_navigation_is_a_page():
    assert len(NAVIGATED) == len(set(NAVIGATED)) > 10
    assert [name for name in NAVIGATED if not (ROOT / f"{name}.md").is_file()] == []


def test_the_reference_has_what_is_exported():
    assert "mpicoll" in LISTED
    assert set(EXPORTED) <= set(dir(mpicoll)), "names imported on first use are not seen"
    template = (ROOT / "docs" / "site" / "templates" / "autosummary" / "module.rst").read_text()
    assert 'for name in members if name != "__version__"' in template


@pytest.mark.parametrize(
    ("module", "name"),
    [("comm.comm", "Comm"), ("comm.methods", "Collectives"), ("comm.requests", "CollectiveRequest"),
     ("comm.requests", "Request"), ("comm.prequest", "Prequest"), ("comm.comm", "Cartcomm"),
     ("buffers.operators", "_Average")],
)  # fmt: skip
def test_every_method_says_what_it_does(module, name):
    methods = [node for node in definition(module, name).body if isinstance(node, ast.FunctionDef)]
    assert methods and not [m.name for m in methods if not m.name.startswith("_") and not ast.get_docstring(m)]


def test_the_reference_has_every_error():
    assert "errors" in EXPORTED
    defined = [name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")]
    assert {name for name in defined if getattr(errors, name).__module__ == errors.__name__} <= set(errors.__all__)


def test_the_reference_has_what_the_guide_is_written_with():
    used = set(re.findall(r"^from (mpicoll\.[\w.]+) import", (ROOT / "docs" / "WRITE_YOUR_OWN.md").read_text(), re.M))
    assert len(used) > 3 and used <= LISTED


@pytest.mark.parametrize("name", sorted(LISTED - {"mpicoll"}))
def test_names_in_the_reference_exist(name):
    module, _, last = name.removeprefix("mpicoll.").rpartition(".")
    place = PACKAGE / name.removeprefix("mpicoll.").replace(".", "/")
    assert any(map(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))) or definition(module, last)
