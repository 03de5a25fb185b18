"""Gather the rows of all files into groups, each for one table or picture: one setting on one place.

Titles distinguish runs of mpicoll by their MPI library and placement where these differ, and by their files' names
where the same was measured twice. Rows of other programs record less. A fact that a file does not record fits
everything, so an OSU or IMB row appears beside all runs that it fits, or by itself if there is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from .lines import KIND
from .model import BY_MODEL, MODEL, Place, Row, Run, Setting


@dataclass(frozen=True)
class Group:
    """Rows that may be compared with each other, by size and then as they were measured."""

    setting: Setting
    place: Place
    rows: tuple[Row, ...]

    @property
    def sizes(self) -> list[int]:
        """Return each size once, ascending."""
        return sorted({row.size for row in self.rows})

    def at(self, size: int) -> list[Row]:
        """Return the rows of one size."""
        return [row for row in self.rows if row.size == size]

    @property
    def is_modelled(self) -> bool:
        """Return whether times are those of the cost model."""
        return any(row.statistic == BY_MODEL for row in self.rows)

    @property
    def title(self) -> str:
        """Return the group in words."""
        return f"{self.setting.title}: {self.place.title}"


Key = tuple[Setting, Place]


def gather(runs: Sequence[Run]) -> list[Group]:
    """Return the groups of all runs, in the order in which they were first measured, places ascending."""
    by_key: dict[Key, list[Row]] = defaultdict(list)
    guests: list[tuple[Row, str]] = []
    for run, where in zip(runs, wheres(runs)):
        stem = PurePath(run.name).stem
        for row in run.rows:
            if run.kind in (KIND, MODEL):
                by_key[row.setting, Place(row.ranks, row.hosts, where)].append(row)
            else:
                guests.append((row, stem))
    own = list(by_key)
    for row, stem in guests:
        for key in _seats(row, own):
            by_key[key].append(_told_apart(row, stem, by_key[key]))
    order = {setting: place for place, setting in enumerate(dict.fromkeys(setting for setting, _ in by_key))}
    keys = sorted(by_key, key=lambda key: (order[key[0]], key[1].hosts or 0, key[1].ranks or 0, key[1].where))
    return [Group(*key, tuple(sorted(by_key[key], key=lambda row: row.size))) for key in keys]


def wheres(runs: Sequence[Run]) -> list[str]:
    """Return for each run the words that distinguish it from other runs of mpicoll; empty if none are needed."""
    ours = [run for run in runs if run.kind == KIND]
    facts = [key for key in ("mpi", "placement") if len({_fact(run, key) for run in ours} - {None}) > 1]
    words = [[word for key in facts if (word := _fact(run, key))] for run in runs]
    for number, run in enumerate(runs):
        again = [other for at, other in enumerate(runs) if at != number and _same(run, other, facts)]
        if run.kind == KIND and any(keys(run) & keys(other) for other in again):
            words[number].append(PurePath(run.name).stem)
    return [", ".join(labels) for labels in words]


def _fact(run: Run, key: str) -> str | None:
    """Return a fact of the environment; ranks of one host are on it in any placement."""
    fact = run.environment.get(key)
    return None if fact in (None, "", "one host") else str(fact)


def _same(run: Run, other: Run, facts: Iterable[str]) -> bool:
    return other.kind == KIND and all(run.environment.get(key) == other.environment.get(key) for key in facts)


def keys(run: Run) -> set[tuple[Setting, int | None, int | None]]:
    """Return what a run measured, and on how many ranks and hosts."""
    return {(row.setting, row.ranks, row.hosts) for row in run.rows}


def _seats(row: Row, own: Sequence[Key]) -> list[Key]:
    """Return where a guest stands: at each place that it fits; of a setting that it fits, but no place, at its own."""
    settings = [setting for setting in dict.fromkeys(setting for setting, _ in own) if fits(row.setting, setting)]
    alone = Place(row.ranks, row.hosts)
    seats = []
    for setting in settings or [row.setting]:
        places = [place for known, place in own if known == setting and fits((row.ranks, row.hosts), place)]
        seats += [(setting, place) for place in places or [alone]]
    return seats


def fits(facts: Iterable[object], known: Iterable[object]) -> bool:
    """Return whether every fact of `facts` that is not None equals its counterpart in `known`."""
    return all(fact is None or fact == other for fact, other in zip(facts, known))


def _told_apart(row: Row, stem: str, beside: Iterable[Row]) -> Row:
    """Return the row, named after its file where another file's program of that name is there already."""
    taken = any(other.size == row.size and other.contender == row.contender for other in beside)
    return replace(row, algorithm=f"{row.algorithm} ({stem})") if taken else row
