"""Have something done once a program has initialized MPI, in the way and at the time that it chooses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PARENT, MODULE = "mpi4py", "mpi4py.MPI"  # importing it initializes MPI, unless mpi4py.rc.initialize is false
PACKAGE = "mpicoll."


class WhenInitialized(MetaPathFinder):
    """Calls `begin` when mpi4py.MPI has been imported and MPI is initialized, and no module of mpicoll is half loaded.

    Where the program initializes MPI itself, that is at the end of its MPI.Init or MPI.Init_thread.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin = begin
        self.loading = 0  # modules that are being loaded, one for the other

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module as Python does without this, and look whether it is time when it has been loaded."""
        if name not in (PARENT, MODULE) and not name.startswith(PACKAGE):
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(self._load, loader.exec_module)
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        self.loading += 1
        try:
            load(module)
        finally:
            self.loading -= 1
        if module.__name__ == PARENT:  # it has a finder of its own
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
        if not self.loading and MODULE in sys.modules:
            self._look(sys.modules[MODULE])

    def _look(self, mpi: Any) -> None:
        sys.meta_path.remove(self)
        if mpi.Is_initialized():
            self.begin()
            return
        own = {name: getattr(mpi, name) for name in ("Init", "Init_thread")}
        for name, initialize in own.items():
            setattr(mpi, name, self._beginning(mpi, own, initialize))

    def _beginning(self, mpi: Any, own: dict[str, Any], initialize: Any) -> Any:
        @wraps(initialize)
        def call(*arguments: Any, **options: Any) -> Any:
            done = initialize(*arguments, **options)
            vars(mpi).update(own)
            self.begin()
            return done

        return call
