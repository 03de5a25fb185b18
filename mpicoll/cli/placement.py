"""The options that place ranks on nodes, which the commands that simulate share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any, NamedTuple

import click

from ..errors import ArgumentError
from ..schedules.grouping import BLOCK, PLACEMENTS, Partition, Placement


class Nodes(NamedTuple):
    """The options that place ranks on nodes; None for those left out."""

    ranks_per_node: int | None
    placement: Placement
    node_list: str | None
    tasks: str | None

    @property
    def are_named(self) -> bool:
        """Return whether an option gives the nodes."""
        return bool(self.ranks_per_node or self.node_list or self.tasks)

    @property
    def options(self) -> list[str]:
        """Return the options that were not left out.

        >>> Nodes(2, "cyclic", None, None).options
        ['--ranks-per-node', '--placement']
        """
        counts = ("--ranks-per-node", self.ranks_per_node), ("--tasks-per-node", self.tasks)
        every = *counts, ("--node-list", self.node_list), ("--placement", self.placement != BLOCK)
        return [name for name, value in every if value]

    def partition(self, p: int, nodes: int | None = None) -> Partition:
        """Return the ranks of each node.

        nodes: how many there are, if no option counts the ranks of a node; None: one for each rank. Raises
        ArgumentError where the options contradict each other, p or nodes.
        """
        from ..cost.placement import place

        counts = self._counts(p, nodes)
        if nodes not in (None, len(counts)):
            raise ArgumentError(
                f"{p} ranks are on {nodes} nodes, and the options place them on {len(counts)}; "
                "change --ranks-per-node or --tasks-per-node, or leave both out"
            )
        return place(counts, self.placement)

    def _counts(self, p: int, nodes: int | None) -> Sequence[int]:
        from ..cost.placement import equal_tasks, node_names, spread_tasks, tasks_per_node

        if self.ranks_per_node and self.tasks:
            raise ArgumentError("--ranks-per-node and --tasks-per-node both count the ranks of a node: leave one out")
        names = node_names(self.node_list) if self.node_list else ()
        if not self.tasks:
            counts = equal_tasks(p, self.ranks_per_node or 1)
            if nodes is not None and self.ranks_per_node is None:
                counts = spread_tasks(p, nodes)
            if names and len(names) != len(counts):
                raise ArgumentError(
                    f"--node-list has {len(names)} nodes, and {p} ranks, {counts[0]} per node, take {len(counts)}; "
                    "add --ranks-per-node or --tasks-per-node"
                )
            return counts
        counts = tasks_per_node(self.tasks)
        if names and len(names) != len(counts):
            raise ArgumentError(f"--node-list has {len(names)} nodes, and --tasks-per-node is for {len(counts)}")
        if sum(counts) != p:
            raise ArgumentError(f"--tasks-per-node places {sum(counts)} ranks, not {p}")
        return counts

    def in_words(self, partition: Partition) -> str:
        """Return how many nodes there are, and how ranks are placed if it is not by blocks."""
        from ..cost.placement import in_words

        return in_words(partition, self.placement)


placement_option = click.option(
    "--placement", type=click.Choice(PLACEMENTS), default=BLOCK, show_default=True, help="Of ranks."
)


def places_ranks(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that place ranks; the command takes them as `where`, a Nodes."""

    @wraps(command)
    def run(
        *, ranks_per_node: int | None, placement: Placement, node_list: str | None, tasks: str | None, **others: Any
    ) -> Any:
        return command(where=Nodes(ranks_per_node, placement, node_list, tasks), **others)

    options = (
        click.option("--ranks-per-node", type=click.IntRange(1), help="Of all nodes but the last.  [default: 1]"),
        click.option("--tasks-per-node", "tasks", metavar="SPEC", help="As SLURM_TASKS_PER_NODE has it: 4(x3),2."),
        click.option("--node-list", metavar="LIST", help="As SLURM_JOB_NODELIST has it: node[01-04,7]."),
        placement_option,
    )
    return reduce(lambda decorated, option: option(decorated), reversed(options), run)
