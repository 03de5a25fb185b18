"""Python files that register algorithms, loaded before a command runs: `mpicoll --load mine.py …`."""

from __future__ import annotations

import sys
import tokenize
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ..errors import MpicollError
from ..schedules.registry import registered
from .group import refuse


class LoadError(MpicollError, ImportError):
    """A file that registers no algorithm, or does not run; says where."""


def load(path: str | Path) -> None:
    """Run a Python file that registers algorithms; it can import the files beside it. Raises LoadError."""
    file = Path(path)
    try:
        with tokenize.open(file) as opened:
            source = opened.read()
    except OSError as error:
        raise LoadError(f"cannot read {file}: {error.strerror}") from None
    except (SyntaxError, UnicodeError) as error:
        raise LoadError(f"{file} is no Python file: {error}") from None
    if (beside := str(file.resolve().parent)) not in sys.path:
        sys.path.append(beside)
    module = ModuleType(f"mpicoll_loaded_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    before = len(list(registered()))
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise LoadError(_where(error, file)) from None
    if len(list(registered())) == before:
        raise LoadError(f"{file} registers no algorithm; see mpicoll.algorithm")


def _where(error: BaseException, file: Path) -> str:
    """Return the file, the line in it and what went wrong there."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}, line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    name, words = type(error).__name__, str(error)
    what = words if words and isinstance(error, MpicollError | ValueError) else f"{name}: {words}" if words else name
    return f"{file}, line {lines[-1]}: {what}" if lines else f"{file}: {what}"


def load_everywhere(files: Sequence[str], together: bool = False) -> None:
    """Load the files, each once, on all ranks; what goes wrong on one of them ends all, told in one line.

    together: whether all ranks use MPI afterwards, and so can exchange errors.
    """
    trouble = ""
    try:
        for path in dict.fromkeys(Path(file) for file in files):
            load(path)
    except LoadError as error:
        trouble = str(error)
    refuse(trouble, together=together and bool(files))
