"""Place ranks on nodes: by blocks or cyclic, on equal nodes or on those of a Slurm job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product

from ..errors import ArgumentError
from ..schedules.grouping import BLOCK, PLACEMENTS, Partition, Placement

MOST = 1 << 20  # nodes of a range or of a count
_NAME = re.compile(r"(?:[^][,\s]|\[[^][]*\])+")  # of one or more nodes
_PART = re.compile(r"\[([^][]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def place(tasks: Sequence[int], placement: Placement = BLOCK) -> Partition:
    """Return the ranks of each node, the first node first; tasks: how many ranks each has.

    By blocks, the first node has the first ranks. Cyclic, ranks are dealt to the nodes in turn, and a full node is left
    out. Raises ArgumentError for another placement.

    >>> place((2, 1, 2)), place((2, 1, 2), "cyclic")
    (((0, 1), (2,), (3, 4)), ((0, 3), (1,), (2, 4)))
    """
    if placement not in PLACEMENTS:
        raise ArgumentError(f"placement is {placement!r}; it must be one of {', '.join(PLACEMENTS)}")
    order = [(0 if placement == BLOCK else turn, node) for node, count in enumerate(tasks) for turn in range(count)]
    nodes: list[list[int]] = [[] for _ in tasks]
    for rank, (_, node) in enumerate(sorted(order)):
        nodes[node].append(rank)
    return tuple(map(tuple, nodes))


def in_words(nodes: Partition, placement: Placement) -> str:
    """Return how many nodes there are, and how ranks are placed if it is not by blocks.

    >>> in_words(((0, 2), (1, 3)), "cyclic")
    '2 nodes, cyclic'
    """
    count = len(nodes)
    return f"{count} node{'s' * (count > 1)}" + f", {placement}" * (placement != BLOCK)


def equal_tasks(p: int, ranks_per_node: int) -> tuple[int, ...]:
    """Return how many of p ranks each node has, where all but the last have as many.

    >>> equal_tasks(10, 4)
    (4, 4, 2)
    """
    full, rest = divmod(p, ranks_per_node)
    return (ranks_per_node,) * full + (rest,) * bool(rest)


def spread_tasks(p: int, nodes: int) -> tuple[int, ...]:
    """Return how many of p ranks each of so many nodes has, where the first ones have one more if p does not divide.

    >>> spread_tasks(10, 4)
    (3, 3, 2, 2)
    """
    least, rest = divmod(p, nodes)
    return (least + 1,) * rest + (least,) * (nodes - rest)


def node_names(text: str) -> tuple[str, ...]:
    """Return the names of a Slurm node list, in its order, as SLURM_JOB_NODELIST spells it.

    Raises ArgumentError for what is no such list, and for a node that is in it twice.

    >>> node_names("node[01-03,7],login")
    ('node01', 'node02', 'node03', 'node7', 'login')
    """
    expressions = _NAME.findall(text)
    if not expressions or ",".join(expressions) != "".join(text.split()):
        raise ArgumentError(f"the node list is {text!r}; write names as Slurm does: node[01-04,7],login1")
    names = [name for expression in expressions for name in _expanded(expression)]
    if len(set(names)) < len(names):
        raise ArgumentError(f"the node list {text!r} has {Counter(names).most_common(1)[0][0]} twice")
    return tuple(names)


def _expanded(expression: str) -> list[str]:
    """Return the names of one expression, such as rack[1-2]n[01-04]."""
    texts = _PART.split(expression)  # between and within brackets, in turn
    return list(map("".join, product(*([text] if i % 2 == 0 else _numbers(text) for i, text in enumerate(texts)))))


def _numbers(text: str) -> list[str]:
    """Return the numbers of the ranges within brackets; a range has as many digits as its first number."""
    numbers = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise ArgumentError(f"the node list has [{text}], and {part.strip()!r} is no range; write [01-04,7]")
        if int(last) - int(first) >= MOST:
            raise ArgumentError(f"the node list has [{text}], and {part.strip()!r} is more than {MOST:,} nodes")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Return how many ranks each node has, as SLURM_TASKS_PER_NODE spells it. Raises ArgumentError for anything else.

    >>> tasks_per_node("4(x3),2")
    (4, 4, 4, 2)
    """
    tasks: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        count, times = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if not count or not times:
            raise ArgumentError(f"tasks per node are {text!r}, and {part.strip()!r} is no count; write 4(x3),2")
        if times > MOST:
            raise ArgumentError(f"tasks per node are {text!r}, and {part.strip()!r} is more than {MOST:,} nodes")
        tasks += [count] * times
    return tuple(tasks)
