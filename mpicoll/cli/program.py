"""A Python program run in place of this one: a script, a module, code or standard input, as `python` runs them."""

from __future__ import annotations

import builtins
import linecache
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

SCRIPT, MODULE, CODE, STDIN = "script", "-m", "-c", "-"
# Files whose frames precede the program's in a traceback.
_BEFORE = {
    __file__,
    runpy.__file__,
    "<frozen runpy>",
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
}


@dataclass
class Program:
    """The program to run. kind: SCRIPT, MODULE, CODE or STDIN; what: the file, the module or the code."""

    kind: str
    what: str | bytes
    arguments: Sequence[str] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> Program:
        """Return the program a command line names, as after `python`. Raises ValueError."""
        if not words:
            raise ValueError("no program was named; give a script, -m MODULE, -c CODE, or - for standard input")
        first, *rest = words
        if first == STDIN:
            return cls(STDIN, "", rest)
        if first[:2] not in (MODULE, CODE):
            return cls(SCRIPT, first, rest)
        kind, what = first[:2], first[2:]
        if not what and not rest:
            raise ValueError(f"{kind} needs {'the name of a module' if kind == MODULE else 'code'} after it")
        return cls(kind, what, rest) if what else cls(kind, rest[0], rest[1:])

    def trouble(self) -> str:
        """Return why there is nothing to run; empty if there is."""
        if self.kind == SCRIPT and not _holds_modules(self.what):
            try:
                with open(self.what, "rb"):
                    pass
            except OSError as error:
                return f"cannot open {self.what!r}: {error.strerror}"
        return ""

    def run(self) -> None:
        """Run the program as __main__, which is not restored afterwards. Exceptions of the program propagate."""
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, __annotations__={})
        sys.argv[:] = [str(self.what) if self.kind == SCRIPT else self.kind, *self.arguments]
        if self.kind == MODULE:
            _come_first(os.getcwd())
            _run_module(self.what, True)
        elif self.kind == SCRIPT and _holds_modules(self.what):
            _come_first(os.path.abspath(str(self.what)))
            _run_module("__main__", False)
        elif self.kind == SCRIPT:
            _come_first(os.path.dirname(os.path.realpath(str(self.what))))
            _run_script(os.path.abspath(str(self.what)), main)
        else:
            _come_first("")
            main.__loader__ = BuiltinImporter
            name = "<stdin>" if self.kind == STDIN else "<string>"
            if self.kind != STDIN and sys.version_info >= (3, 13):  # from then on tracebacks show its lines
                text = str(self.what)
                linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
            exec(compile(self.what, name, "exec", 0, True), main.__dict__)


def own_frames(traceback: TracebackType | None, *before: str) -> TracebackType | None:
    """Return a traceback from the program's first frame on; before: files of the callers, besides this one."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _BEFORE.union(before):
        traceback = traceback.tb_next
    return traceback


def _holds_modules(path: Any) -> bool:
    """Return whether the path is a directory or an archive, whose __main__ runs."""
    return pkgutil.get_importer(path) is not None


def _come_first(place: str) -> None:
    """Put the program's directory first in sys.path, in place of this command's."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = place


def _run_script(path: str, main: ModuleType) -> None:
    loader = SourceFileLoader("__main__", path)
    main.__loader__, main.__file__ = loader, path
    main.__dict__["__cached__"] = None
    exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)


def _run_module(name: Any, named: bool) -> None:
    """Run a module as the interpreter does; runpy.run_module would replace __main__ only temporarily."""
    runpy._run_module_as_main(name, named)  # type: ignore[attr-defined]
