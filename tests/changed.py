"""Says whether benchmarks, jobs or what they import changed: if not, CI replaces their tests by a smoke test.

    python tests/changed.py                     # exit status 1 and the files if any changed, else 0
    MPICOLL_CHANGED_SINCE=v1 python tests/changed.py

The checkout is compared with the commit that MPICOLL_CHANGED_SINCE names; else with where this branch left main; on
main itself with the commit that is LANDED commits older, since several land at once. Where git knows none of these, as
in a shallow clone, everything counts as changed. What the folders import are the modules that their own imports name,
not what these import in turn: that has tests of its own.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANDED = 10     # commits
FOLDERS = ("benchmarks", "jobs")
BRANCHES = ("origin/main", "main", "origin/HEAD")
# The files of their tests, in any folder below tests/.
TESTS = ("test_benchmarks", "test_report", "test_osu", "test_peers", "test_cluster", "test_full", "test_hosts",
         "test_jobs", "test_many_hosts", "test_load", "test_slurm", "test_tune.py")
ALSO = ("setup.cfg", "pyproject.toml", ".ci", "tests/conftest.py", "tests/launcher.py", "tests/support/slurm.py",
        "tests/support/harness.py", "tests/support/browser.py",
        "tests/launch/conftest.py", "tests/unit/data", "tests/unit/report_data.py",
        "tests/changed.py")


def is_of_tools(name: str) -> bool:
    """Tell whether a file of tests is about benchmarks, jobs and the like."""
    return name.startswith(TESTS)


def git(*words: str) -> str | None:
    """Return what git prints, None where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def base() -> str | None:
    """Return the commit to compare with, None where none is known."""
    if named := os.environ.get("MPICOLL_CHANGED_SINCE"):
        return git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
    head = git("rev-parse", "HEAD")
    for branch in BRANCHES:
        if (left := git("merge-base", "HEAD", branch)) and left != head:
            return left
    return git("rev-parse", "--verify", "--quiet", f"HEAD~{LANDED}")


def imported() -> set[str]:
    """Return the files of mpicoll that the folders import, as paths in the checkout."""
    files = set()
    for folder in FOLDERS:
        for source in (ROOT / folder).rglob("*.py"):
            for module in modules(ast.parse(source.read_text())):
                path = module.replace(".", "/")
                files |= {name for name in (f"{path}.py", f"{path}/__init__.py") if (ROOT / name).exists()}
    return {name.replace("mpicoll/kernels", "kernels") for name in files}


def modules(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of mpicoll that a source names; what is imported from a package may be one too."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
        yield from (name for name in names if name.split(".")[0] == "mpicoll")


def relevant(files: list[str]) -> list[str]:
    """Return those of the files that the tests of benchmarks, jobs and the like depend on."""
    names = imported()
    folders = tuple(f"{folder}/" for folder in (*FOLDERS, *ALSO))
    return [file for file in files
            if file in names or file in ALSO or file.startswith(folders)
            or (file.startswith("tests/") and is_of_tools(Path(file).name))]


def main() -> int:
    since = base()
    if since is None:
        print("git knows no commit to compare with: benchmarks, jobs and the like are tested in full")
        return 1
    files = git("diff", "--name-only", since)
    if files is None or (changed := relevant(files.splitlines())):
        shown = ", ".join(changed[:5]) if files is not None else "unknown"
        print(f"changed since {since[:12]}: {shown}; benchmarks, jobs and the like are tested in full")
        return 1
    print(f"benchmarks, jobs and what they import are as in {since[:12]}: of their tests a smoke test runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
