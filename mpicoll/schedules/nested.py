"""Parameters that name other algorithms, such as the allreduce between the groups of a hierarchical one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from .grouping import Partition
from .parameters import Groups, Kind
from .registry import Chosen, parse_spec


@dataclass(frozen=True)
class Of(Kind):
    """Another algorithm, of one of these collectives: a name or "name(key=value)"."""

    collective: str
    of_codes = True

    @property
    def range(self) -> str:  # type: ignore[override]
        """Return the range in words."""
        return f"an algorithm of {self.collective}"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> Any:
        """Return the algorithm with its own parameters, as a building block. Raises UnknownAlgorithm, ValueError."""
        if not isinstance(value, str):
            raise ValueError(f"it must be {self.range}")
        entry, parameters = parse_spec(self.collective, value)
        if entry.cuts_shares:
            raise ValueError(f"it must be {self.range} whose blocks are whole shares of ranks")
        return Chosen(entry, parameters, nodes)

    def turned(self, resolved: Any, p: int, by: int) -> Any:
        """Return the same algorithm, nodes under the ranks' new names."""
        return resolved if resolved.nodes is None else replace(resolved, nodes=Groups().turned(resolved.nodes, p, by))


Reducing = Annotated[Any, Of("reduce")]
Broadcasting = Annotated[Any, Of("bcast")]
Allreducing = Annotated[Any, Of("allreduce")]
ReduceScattering = Annotated[Any, Of("reduce_scatter")]
Allgathering = Annotated[Any, Of("allgather")]
Gathering = Annotated[Any, Of("gather")]
Scattering = Annotated[Any, Of("scatter")]
Alltoalling = Annotated[Any, Of("alltoall")]
