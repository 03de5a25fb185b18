"""Check installed files, imports, and that the documents name files that exist."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("kernels", "benchmarks", "jobs")


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the names of the files in a wheel built from a copy of the checkout, without a network."""
    version = importlib.metadata.version("setuptools") if _installed("setuptools") else "0"
    if tuple(map(int, version.split(".")[:2])) < (70, 1) and not _installed("wheel"):
        pytest.skip("setuptools>=70.1 is not installed here, and no network is used to build a wheel")
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("mpicoll", *LINKED):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    done = python("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet",
                  "--disable-pip-version-check", "--wheel-dir", str(output), ".", cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = output.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.once
def test_wheel_has_one_top_level_name(wheel):
    top = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert top == {"mpicoll"}


def test_wheel_holds_every_module_and_what_pages_and_jobs_are_made_from(wheel):
    linked = [file for name in LINKED for file in (ROOT / name).rglob("*.py")]
    page = [ROOT / "benchmarks" / "report" / f"page.{kind}" for kind in ("html.j2", "css", "js")]
    jobs = [*(ROOT / "jobs").glob("templates/*"), *(ROOT / "jobs").glob("sites/*")]
    assert len(jobs) > 6
    folder = ROOT / "mpicoll" / "describe" / "explore"
    explore = [file for kind in ("html", "css", "js") for file in folder.glob(f"*.{kind}")]
    assert len(explore) > 5
    wanted = {f"mpicoll/{file.relative_to(ROOT)}" for file in (*linked, *page, *jobs)}
    wanted |= {str(file.relative_to(ROOT)) for file in explore}
    assert {f"mpicoll/{name}/__init__.py" for name in LINKED} <= wanted
    assert wanted | {str(file.relative_to(ROOT)) for file in (ROOT / "mpicoll").rglob("*.py")} <= set(wheel)


def test_links_are_relative_and_no_bare_name_is_installed(tmp_path):
    for name in LINKED:
        assert (ROOT / "mpicoll" / name).readlink() == Path("..") / name
    code = f"import importlib.util as u; print([name for name in {LINKED!r} if u.find_spec(name)])"
    done = python("-I", "-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_kernels_know_nothing_of_the_library():
    imports = re.compile(r"^\s*(?:from|import)\s+(mpicoll|mpi4py)\b", re.MULTILINE)
    for file in (ROOT / "kernels").rglob("*.py"):
        assert not imports.findall(file.read_text()), file


def paths_named_in(text: str) -> list[str]:
    """Return the tokens in backquotes that look like paths: with a slash inside, or ending in .py or .md."""
    return [token for token in re.findall(r"`([\w.*/-]+)`", text)
            if "/" in token.strip("/") or token.endswith(("/", ".py", ".md"))]


PAGES = [ROOT / "docs" / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


def test_paths_named_in_the_architecture_exist():
    named = [path for page in PAGES for path in paths_named_in(page.read_text())]
    assert named
    assert [path for path in named if not exists(path)] == [] and not exists("a/b.c")


def exists(path: str) -> bool:
    """Return whether a path exists in the checkout or the library; a bare file name may be anywhere in the library."""
    if "/" not in path:
        return any(ROOT.glob(path)) or any((ROOT / "mpicoll").rglob(path))
    return any(any(base.glob(path.rstrip("/"))) for base in (ROOT, ROOT / "mpicoll"))
