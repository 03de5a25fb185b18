"""A site: what job scripts need to know of a cluster, in one small TOML file.

Two examples are in `sites/`; `mpicoll jobs site` prints every key with its meaning and default.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from .errors import JobsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLES = Path(__file__).resolve().parent / "sites"
PLUGINS = {"mpich": "pmi2", "intel": "pmi2", "openmpi": "pmix"}  # what each MPI speaks with srun


def _named(name: str) -> str:
    return name.replace("_", "-")


# Text that scripts contain verbatim, so it must not contain characters special to the shell.
Word = Annotated[str, StringConstraints(pattern=r"^[\w.,:/@%+=-]*$")]
Place = Annotated[str, StringConstraints(pattern=r"^[^'\"`\n\\]*$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\n]*$")]


class _Keys(BaseModel):
    """Keys are written with hyphens, and there are no others."""

    model_config = ConfigDict(extra="forbid", alias_generator=_named, populate_by_name=True, frozen=True)


class Mpi(_Keys):
    """The way ranks are started."""

    kind: Literal["mpich", "openmpi", "intel"] = Field(default="mpich", description="which MPI")
    launcher: Literal["srun", "mpirun"] = Field(
        default="srun", description="what starts ranks: srun, or the MPI's own mpirun inside the allocation"
    )
    plugin: Word = Field(
        default="", description="srun --mpi=PLUGIN, of `srun --mpi=list`; pmi2, for openmpi pmix, if not given"
    )
    pmi_library: Line = Field(
        default="", description="Slurm's libpmi2.so, for Intel MPI (I_MPI_PMI_LIBRARY)"
    )
    bind: Word = Field(
        default="cores", description="srun --cpu-bind=, mpirun --bind-to (as core): cores, sockets, none …"
    )
    distribution: Word = Field(
        default="block:block", description="srun --distribution=: of ranks to nodes, then to sockets"
    )

    @model_validator(mode="after")
    def _fits(self) -> Mpi:
        if self.kind == "intel" and self.launcher == "srun" and not self.pmi_library:
            raise ValueError("Intel MPI under srun needs pmi-library, the path of Slurm's libpmi2.so")
        return self

    @property
    def plugin_in_use(self) -> str:
        """Return the value for srun --mpi=."""
        return self.plugin or PLUGINS[self.kind]


class Site(_Keys):
    """A cluster, or a partition of it."""

    partition: Word = Field(default="", description="sbatch --partition=; the cluster's default, if not given")
    account: Word = Field(default="", description="sbatch --account=")
    qos: Word = Field(default="", description="sbatch --qos=")
    ranks_per_node: int = Field(default=1, ge=1, description="ranks on each node")
    cpus_per_rank: int = Field(default=1, ge=1, description="cores, and threads, of each rank")
    exclusive: bool = Field(default=True, description="no other job on the nodes: without it times say little")
    requeue: bool = Field(
        default=False, description="a job whose time is up queues again and continues"
    )
    python: Line = Field(
        default="", description="the interpreter of mpicoll's environment; the one that renders, if not given"
    )
    stage: Place = Field(
        default="", description="a directory of each node's own, such as /tmp, to copy the environment to"
    )
    modules: list[Line] = Field(default=[], description="modules to load, after module purge")
    setup: list[Line] = Field(default=[], description="lines of bash for what else there is to set up")
    sbatch: list[Line] = Field(default=[], description='further options of sbatch, such as "--mem=0"')
    mpi: Mpi = Field(default=Mpi(), description="how ranks are started")
    environment: dict[Name, Line] = Field(default={}, description="variables that jobs are to have")

    @model_validator(mode="after")
    def _words(self) -> Site:
        if wrong := [word for word in self.sbatch if not word.startswith("-")]:
            raise ValueError(f"sbatch: {wrong[0]!r} is no option of sbatch")
        return self

    @property
    def sets_memory(self) -> bool:
        """Return whether the options of sbatch set the memory; an exclusive job otherwise has only the default."""
        return any(option.startswith("--mem") for option in self.sbatch)


def read(path: str | Path | None) -> Site:
    """Return the site of a file, or all defaults. Raises JobsError, which says where in it what is wrong."""
    if path is None:
        return Site()
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise JobsError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise JobsError(f"{path} is no TOML: {error}") from None
    try:
        return Site.model_validate(content)
    except ValidationError as error:
        raise JobsError(f"{path}: {'; '.join(map(_told, error.errors()))}") from None


def _told(error: Any) -> str:
    *above, key = ["", *map(str, error["loc"])]
    where = ".".join(filter(None, [*above, key]))
    if error["type"] == "extra_forbidden":
        known = list(_keys(Mpi if "mpi" in above else Site))
        near = get_close_matches(key, known, 1)
        return f"there is no key {where}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _keys(model: type[BaseModel]) -> Iterator[str]:
    return map(_named, model.model_fields)


def described() -> str:
    """Return every key with its meaning and default, as a TOML file in which all is commented out."""
    return "\n".join([*_lines(Site), "", "# [mpi]", *_lines(Mpi), "", "# [environment]", '# NAME = "value"'])


def _lines(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name not in ("mpi", "environment"):
            yield f"# {_named(name)} = {_toml(field.default)}    # {field.description}"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
