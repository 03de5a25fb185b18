"""Nothing public is missing from the reference, or `make site` fails."""

from __future__ import annotations

from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.logging import getLogger

import mpicoll


def public() -> Iterator[str]:
    """Yield the names that the reference has to have: what is exported, and what Comm has beside mpi4py's."""
    yield from (f"mpicoll.{name}" for name in mpicoll.__all__ if not name.startswith("__"))
    yield from (f"mpicoll.errors.{name}" for name in mpicoll.errors.__all__)
    for cls in mpicoll.Comm.__mro__:
        if cls.__module__.startswith("mpicoll."):
            yield from (f"mpicoll.Comm.{name}" for name in vars(cls) if not name.startswith("_"))


def look(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each name that is missing."""
    documented = env.get_domain("py").objects  # type: ignore[attr-defined]
    for name in public():
        if name not in documented:
            getLogger(__name__).warning("%s is public and not in the reference: has it a docstring?", name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("env-check-consistency", look)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
