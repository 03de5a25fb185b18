"""Check a command line of `mpicoll bench`: every rank derives the same settings from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import product
from typing import Any

from mpicoll.cli.names import canonical, split_names
from mpicoll.cli.sizes import format_size, parse_rate, parse_size, parse_sizes
from mpicoll.errors import MpicollError, UnknownAlgorithm
from mpicoll.schedules.collectives import base_collective, canonical_name

from ..cases import contenders as who
from ..cases.lossy import is_lossy
from ..cases.patterns import PATTERNS, Shape
from ..cases.scaling import SCALINGS, scaled
from ..command.checks import ALL, listed, not_negative, positive
from ..launch import RATE_VARIABLE
from ..measure.budget import Budget
from ..measure.sync import SYNCS

GLOO, NONE = "gloo", "none"


@dataclass(frozen=True)
class Series:
    """One shape to be called, by whom, on which sizes, and why which algorithms and sizes are left out."""

    shape: Shape
    algorithms: tuple[str, ...]
    left_out: dict[str, str]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The checked settings of a run, in seconds, bytes and bits per second."""

    series: tuple[Series, ...]
    sizes: tuple[int, ...]
    scaling: str
    engines: tuple[str, ...]
    peers: tuple[str, ...]
    chunk_bytes: int | None
    window: int | None
    seconds: float
    rounds: int | None
    precision: float
    warmup: int
    sync: str
    rate: float | None
    memory: int
    seed: int

    @property
    def name(self) -> str:
        """Return the name for a results file: the collective, or "collectives" if there are several."""
        collectives = dict.fromkeys(series.shape.collective for series in self.series)
        return next(iter(collectives)) if len(collectives) == 1 else "collectives"

    @property
    def notes(self) -> list[str]:
        """Return the remarks for the tables, one line each: chunk limits, and which algorithms are left out and why."""
        limits = [f"chunks of {format_size(self.chunk_bytes)}"] if self.chunk_bytes else []
        limits += [f"{self.window} chunks in flight"] if self.window else []
        remarks = [", ".join(limits) + ", wherever mpicoll runs"] if limits else []
        several = len(self.series) > 1
        for series in self.series:
            left_out = "; ".join(f"{name} left out: {why}" for name, why in series.left_out.items())
            remarks += [f"{series.shape.title}: {left_out}" if several else left_out] if left_out else []
        return remarks

    def budget(self, series: Series) -> Budget:
        """Return a shape's part of the time, in proportion to how many take part."""
        contenders = sum(len(other.algorithms) for other in self.series)
        return Budget(self.seconds * len(series.algorithms) / contenders, self.rounds, self.precision)

    def line(self) -> dict[str, Any]:
        """Return the settings for the record, where each result has its own shape and contenders."""
        return {key: value for key, value in asdict(self).items() if key != "series"} | {
            "left_out": {series.shape.title: series.left_out for series in self.series if series.left_out}
        }


def settings(p: int, collectives: str, **options: Any) -> Settings:
    """Return the settings for p ranks from the words of the command line. Raises ValueError or UnknownAlgorithm."""
    chunk, window, rounds, rate = options["chunk_bytes"], options["window"], options["iterations"], options["rate"]
    for option, known in (("sync", SYNCS), ("scaling", SCALINGS)):
        if options[option] not in known:
            raise ValueError(f"--{option} is {options[option]!r}; it must be {' or '.join(known)}")
    sizes = parse_sizes(options["sizes"])
    collectives = ",".join(map(canonical, split_names(collectives))) or collectives
    if options["dtype"] is None:
        options["dtype"] = _dtype(collectives, options["algorithms"], p)
    series = check_algorithms(list(shapes(p, collectives, **options)), options["algorithms"], p)
    return Settings(
        tuple(_sized(entry, sizes, p, options["scaling"]) for entry in series),
        tuple(sizes),
        options["scaling"],
        check_engines(options["engines"]),
        check_peers(options["peers"]),
        None if chunk is None else positive("--chunk-bytes", parse_size(chunk)),
        None if window is None else positive("--window", window),
        positive("--seconds", options["seconds"]),
        None if rounds is None else positive("--iterations", rounds),
        not_negative("--precision", options["precision"]) / 100,
        not_negative("--warmup", options["warmup"]),
        options["sync"],
        None if rate is None else _rate(rate),
        parse_size(options["memory"]),
        options["seed"],
    )


def _dtype(collectives: str, algorithms: str, p: int) -> str:
    """Return the dtype where none is named: what codecs take, if any algorithm moves codes."""
    for name, spec in product(split_names(collectives), split_names(algorithms)):
        with suppress(MpicollError):
            if spec != ALL and is_lossy(base_collective(name), spec, p):
                return "float32"
    return "float64"


def _sized(series: Series, sizes: list[int], p: int, scaling: str) -> Series:
    """Return the series with its sizes on p ranks. Raises ValueError if none is left."""
    scaled_sizes = {size: scaled(size, series.shape.collective, p, scaling) for size in sizes}
    usable_sizes = tuple(dict.fromkeys(size for size in scaled_sizes.values() if size is not None))
    if not usable_sizes:
        raise ValueError(f"--sizes has none that {p} ranks can share in {series.shape.collective}")
    small = {format_size(size): "less than an element of each block" for size, of in scaled_sizes.items() if of is None}
    return replace(series, sizes=usable_sizes, left_out=series.left_out | small)


def shapes(p: int, collectives: str, **options: Any) -> Iterator[Shape]:
    """Yield every combination of the listed collectives, dtypes, operators, roots, counts and forms that is one.

    A word that was given for all collectives must suit all; an operator is nothing to those that do not reduce.
    """
    from mpicoll.schedules.registry import list_algorithms

    words = listed("COLLECTIVE", collectives)
    every = [collective for collective in list_algorithms() if collective in PATTERNS]
    names = [collective for name in words for collective in (every if name == ALL else [name])]
    for name in names:
        if name not in PATTERNS:
            raise UnknownAlgorithm("collective", name, (*PATTERNS, ALL))
    lists = [listed(f"--{word}", options[word]) for word in ("dtype", "op", "root", "counts", "form")]
    seen: dict[str, None] = {}
    for name, (dtype, op, root, counts, form) in product(dict.fromkeys(names), product(*lists)):
        shape = Shape(name, dtype, op.lower(), int(root) if root.isdecimal() else root, options["in_place"], counts,
                      form, options["fresh"])
        shape.check(p)
        if shape.title not in seen:
            seen[shape.title] = None
            yield shape


def check_algorithms(wanted: list[Shape], text: str, p: int) -> Iterator[Series]:
    """Yield who takes part in each shape: "all" is native, auto and every algorithm that suits p ranks.

    Of several collectives, each takes the algorithms that it has. Whether those named suit the ranks is seen when
    there is a communicator. Raises UnknownAlgorithm, ParameterError, ValueError.
    """
    names = listed("--algorithms", text)
    for name in names:
        if not any(_is_known(name, shape.collective) for shape in wanted):
            first = wanted[0].collective
            kind = f"{first} algorithm" if len({shape.collective for shape in wanted}) == 1 else "algorithm"
            raise UnknownAlgorithm(kind, name, (who.NATIVE, who.AUTO, ALL, *_known(first)))
    for shape in wanted:
        yield _takers(shape, [name for name in names if _is_known(name, shape.collective)], p)


def _known(collective: str) -> tuple[str, ...]:

    from mpicoll.schedules.registry import list_algorithms

    return tuple(list_algorithms()[canonical_name(collective)])


def _is_known(name: str, collective: str) -> bool:
    return who.base_name(name) in (who.NATIVE, who.AUTO, ALL, *_known(collective))


def _takers(shape: Shape, names: list[str], p: int) -> Series:
    """Return who takes part in one shape, native first."""
    from mpicoll.schedules.registry import exact_algorithms, find, parse_spec

    collective = shape.collective
    chosen_names, left_out = list[str](), dict[str, str]()
    for name in names:
        if name == ALL:
            entries = [find(collective, algorithm) for algorithm in exact_algorithms(canonical_name(collective))]
            chosen_names += [who.NATIVE, who.AUTO, *(entry.name for entry in entries if entry.serves(p))]
            left_out = {e.name: f"needs {e.requires.words}" for e in entries if e.requires and not e.serves(p)}
        else:
            if name not in (who.NATIVE, who.AUTO):
                parse_spec(collective, name)
            chosen_names.append(name)
    if not chosen_names:
        raise ValueError(f"--algorithms names none that {collective} has")
    return Series(shape, tuple(dict.fromkeys(sorted(chosen_names, key=lambda name: name != who.NATIVE))), left_out)


def check_engines(text: str) -> tuple[str, ...]:
    """Return the names of engines. Raises ValueError."""
    names = split_names(text)
    if not names or not set(names) <= set(who.ENGINES):
        raise ValueError(f"--engines is {text!r}; it takes a list of {', '.join(who.ENGINES)}")
    return tuple(names)


def check_peers(text: str) -> tuple[str, ...]:
    """Return the names of other libraries that take part. Raises ValueError for one that is unknown or missing."""
    names = split_names(text)
    if not set(names) <= {GLOO, NONE} or (NONE in names and len(names) > 1):
        raise ValueError(f"--peers is {text!r}; it takes {GLOO} or {NONE}")
    if GLOO in names and find_spec("torch") is None:
        raise ValueError(f"--peers {GLOO} needs torch: pip install 'mpicoll[torch]'")
    return tuple(name for name in names if name != NONE)


def _rate(text: str) -> float:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ValueError(f"--rate, or {RATE_VARIABLE}: {error}") from None
