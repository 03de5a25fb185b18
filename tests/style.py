"""Count what docs/STYLE.md rules out and a machine can find. The counts may only fall: `make lint`.

    python tests/style.py           # compare with LIMITS; exit status 1 where a count differs from its limit
    python tests/style.py --list    # every occurrence, as FILE:LINE: RULE: TEXT
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("mpicoll", "kernels", "benchmarks", "jobs", "tests", ".ci", "docs", "README.md", "CONTRIBUTING.md")
TESTS, IDEAS = "tests/", "mpicoll/algorithms/"  # a test's docstring says what holds, an algorithm's states its idea
# These quote what they rule out, or are generated.
EXEMPT = ("docs/STYLE.md", "docs/api", "tests/style.py", "tests/unit/test_style.py")
LIMITS = {"word": 0, "docstring": 0, "name": 0}

WORDS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|in vain|owns? up|lets? go of|stands? still|go(es)? on with"
    r"|(is|are) told)\b",
    re.IGNORECASE,
)
DOCSTRINGS = re.compile(r"(What(ever)?|Whether|Which|That|Who(se|ever)?|How(ever)?|Where(ver)?|Do nothing)\b")
NOUNS = re.compile(r"(The|An?|All|Every|Each|One|Two|Those|No|Nothing|Its?|For|In|On|By|Of|As|With|From)\b")
NAMES = {"each", "one", "found", "given", "made", "told", "said"}


class Occurrence(NamedTuple):
    """One break of a rule, by file and line."""

    file: str
    line: int
    rule: str
    text: str


def occurrences(file: str, text: str) -> Iterator[Occurrence]:
    """Yield what is ruled out in the text of a Python file or of a page."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in WORDS.finditer(line):
            yield Occurrence(file, number, "word", match.group())
    if file.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            yield from _of_node(file, node)


def _of_node(file: str, node: ast.AST) -> Iterator[Occurrence]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if DOCSTRINGS.match(first) or (NOUNS.match(first) and _wants_verb(file, node)):
            yield Occurrence(file, getattr(node, "lineno", 1), "docstring", first)
        if not isinstance(node, ast.Module) and node.name in NAMES:
            yield Occurrence(file, node.lineno, "name", node.name)
    elif isinstance(node, ast.arg) and node.arg in NAMES:
        yield Occurrence(file, node.lineno, "name", node.arg)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
        yield Occurrence(file, node.lineno, "name", node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in NAMES:
        yield Occurrence(file, node.lineno, "name", node.attr)
    elif isinstance(node, ast.alias) and node.asname in NAMES:
        yield Occurrence(file, node.lineno, "name", node.asname)


def _wants_verb(file: str, node: ast.AST) -> bool:
    """Tell whether a docstring has to begin with a verb: that of a function, not of a property, test or algorithm."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or file.startswith(IDEAS):
        return False
    if file.startswith(TESTS) and (node.name.startswith("test_") or [x.arg for x in node.args.args] == ["p", "rank"]):
        return False
    return not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def every() -> list[Occurrence]:
    """Return the occurrences in all sources and pages of FOLDERS."""
    places = [place for name in FOLDERS for place in ([ROOT / name], (ROOT / name).rglob("*"))[(ROOT / name).is_dir()]]
    files = {path.relative_to(ROOT).as_posix(): path for path in places if path.suffix in (".py", ".md")}
    texts = ((file, path.read_text("utf-8")) for file, path in sorted(files.items()) if not file.startswith(EXEMPT))
    return [item for file, text in texts for item in occurrences(file, text)]


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every occurrence")
    arguments = parser.parse_args()
    items = every()
    if arguments.list:
        print(*(f"{item.file}:{item.line}: {item.rule}: {item.text}" for item in items), sep="\n")
        return 0
    counts = Counter(item.rule for item in items)
    status = 0
    for rule, limit in LIMITS.items():
        if counts[rule] > limit:
            status = 1
            print(f"{rule}: {counts[rule]} occurrences, {limit} allowed; see docs/STYLE.md and tests/style.py --list")
        elif counts[rule] < limit:
            status = 1
            print(f"{rule}: {counts[rule]} occurrences are left; set the limit in tests/style.py to that")
    return status


if __name__ == "__main__":
    sys.exit(main())
