"""Find the source of an algorithm, and of the functions of the package's algorithms that it is made of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from ...schedules.registry import Algorithm

ALGORITHMS = __package__.partition(".")[0] + ".algorithms"
MOST = 6  # functions of one algorithm


def sources(entry: Algorithm) -> dict[str, str]:
    """Return the source of the algorithm's function first, then of those that it calls, by module and name."""
    shown: dict[str, str] = {}
    todo = [_unwrapped(entry)]
    while todo and len(shown) < MOST:
        function = todo.pop(0)
        key = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if key in shown:
            continue
        try:
            shown[key] = inspect.getsource(function).rstrip()
        except (OSError, TypeError):  # defined where no file is, as in a notebook that is gone
            continue
        todo += _called(function, entry.body.__module__)
    return shown


def _unwrapped(thing: Any) -> Any:
    """Return the function of an algorithm or the function itself."""
    return inspect.unwrap(thing.body if isinstance(thing, Algorithm) else thing)


def _called(function: Any, home: str) -> Iterator[Any]:
    """Yield the functions that a function names, of the algorithms' package or of the file it is from."""
    code, names = function.__code__, function.__globals__
    for name in _names(code):
        thing = names.get(name)
        if isinstance(thing, ModuleType) and thing.__name__.startswith(ALGORITHMS):
            things = [vars(thing).get(attribute) for attribute in _names(code)]
        else:
            things = [thing]
        for candidate in things:
            plain = _unwrapped(candidate) if isinstance(candidate, Algorithm) or inspect.isfunction(candidate) else None
            if plain is not None and (plain.__module__ == home or plain.__module__.startswith(ALGORITHMS)):
                yield plain


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, those of the functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
