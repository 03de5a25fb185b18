"""Select the groups of one setting that make a curve over hosts or ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .groups import Group


class Family(NamedTuple):
    """Groups that differ in x alone, "hosts" or "ranks", ascending in it."""

    title: str
    x: str
    groups: tuple[Group, ...]


def families(groups: Sequence[Group]) -> list[Family]:
    """Return families over hosts with equal ranks on each, then over ranks on equal hosts; of two places or more."""
    by_share: dict[tuple[float, str], list[Group]] = defaultdict(list)
    by_hosts: dict[tuple[int, str], list[Group]] = defaultdict(list)
    for group in groups:
        ranks, hosts, where = group.place
        if ranks and hosts:
            by_share[ranks / hosts, where].append(group)
        if ranks:
            by_hosts[hosts or 0, where].append(group)
    all_families = [_family(f"{share:g} rank{'s' * (share != 1)} per host", where, "hosts", same)
                    for (share, where), same in by_share.items()]  # fmt: skip
    all_families += [_family(f"{hosts or '?'} host{'s' * (hosts != 1)}", where, "ranks", same)
                     for (hosts, where), same in by_hosts.items()]  # fmt: skip
    return sorted((family for family in all_families if len(family.groups) > 1), key=lambda family: -len(family.groups))


def _family(title: str, where: str, x: str, groups: Sequence[Group]) -> Family:
    distinct = {getattr(group.place, x): group for group in groups}
    return Family(f"{title}{', ' * bool(where)}{where}", x, tuple(distinct[at] for at in sorted(distinct)))
