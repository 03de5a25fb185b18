"""Recognize collectives among the events of traces that other programs wrote.

torch.profiler has a collective up to three times: the call that starts it (c10d::allreduce_, record_param_comms), its
execution on the host (gloo:all_reduce), and its kernel on a GPU (ncclDevKernel_AllReduce_…).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeGuard

from ..errors import TimelineError
from .read import Trace

MOST = 1 << 63  # larger numbers come from a damaged file
COMPUTING = "cpu_op"  # torch.profiler's category of operations
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of what a GPU executes
COPIES = ("python_function", "gpu_user_annotation")  # categories of what repeats other events
_KINDS = (
    "all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|bcast|barrier|scatter|gather|reduce|exscan|scan"
)
_ENDING = "(?:v|w|_base|_block|_into_tensor|_tensor|_single|_coalesced)*"
_PLAIN = re.compile(rf"(?:(\w+)(::?))?_?({_KINDS}){_ENDING}_?", re.IGNORECASE)
_MPI = re.compile(rf"P?MPI_(I?)(?:neighbor_)?({_KINDS}){_ENDING}", re.IGNORECASE)
_NCCL = re.compile(rf"nccl(?:Dev)?(?:Kernel_)?({_KINDS})(?:[_(].*)?", re.IGNORECASE | re.DOTALL)
_TYPES = {
    1: "bool byte char unsignedchar signedchar uint8 int8 float8_e4m3fn float8_e5m2",
    2: "half bfloat16 short shortint float16 int16",
    4: "float int float32 int32",
    8: "double long longint float64 int64 complex<float>",
    16: "complex<double>",
}
_ELEMENT = {name: size for size, names in _TYPES.items() for name in names.split()}
Track = tuple[str, str]  # process and thread


class Level(IntEnum):
    """The part of a collective that an event is."""

    LAUNCH = 0  # the call that starts it
    HOST = 1
    DEVICE = 2


@dataclass
class OtherCall:
    """A collective on one rank, in microseconds of that rank's clock.

    rank and nbytes are None if the event lacks them. hidden: the part during which the rank computes, None if unknown.
    """

    rank: int | None
    name: str
    kind: str
    level: Level
    track: Track
    nbytes: int | None
    began: float
    ended: float
    hidden: float | None = None


class Slice(NamedTuple):
    """An event with a beginning and an end, and the collective that it is, if any."""

    track: Track
    name: str
    category: str
    began: float
    ended: float
    call: OtherCall | None


class Slices(NamedTuple):
    """The slices of a trace, the names of its processes, and how many collectives have no end."""

    slices: list[Slice]
    processes: dict[str, str]
    endless: int


def read_slices(trace: Trace) -> Slices:
    """Return the slices of a trace. Raises TimelineError if a collective has no times."""
    slices, processes = list[Slice](), dict[str, str]()
    begun: dict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for index, event in enumerate(trace.events):
        phase = event.get("ph") if isinstance(event, dict) else None
        if phase == "X":
            slices += _slice(trace.path, index, event, event.get("dur"))
        elif phase in ("B", "b"):
            begun[_pairing(event)].append((index, event))
        elif phase in ("E", "e") and begun[_pairing(event)]:
            at, start = begun[_pairing(event)].pop()
            times = start.get("ts"), event.get("ts")
            took = times[1] - times[0] if _is_time(times[0]) and _is_time(times[1]) else None
            slices += _slice(trace.path, at, {**start, "args": {**_args(start), **_args(event)}}, took)
        elif phase == "M" and event.get("name") == "process_name":
            processes[str(event.get("pid"))] = str(_args(event).get("name"))
    left = (start | {"ts": 0} for starts in begun.values() for _, start in starts)
    endless = sum(item.call is not None for start in left for item in _slice(trace.path, 0, start, 0))
    return Slices(slices, processes, endless)


def _pairing(event: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields by which a beginning and its end match."""
    is_nested = event["ph"] in "BE"
    return tuple(str(event.get(key)) for key in (("pid", "tid") if is_nested else ("pid", "cat", "id", "name")))


def _slice(path: str, index: int, event: Mapping[str, Any], took: Any) -> Iterator[Slice]:
    """Yield an event if it has times. Raises TimelineError if it has none, but is a collective."""
    began, name, category = event.get("ts"), printable(event.get("name", "")), str(event.get("cat", ""))
    times = (float(began), float(began + took)) if _is_time(began) and _is_time(took) else (0.0, -1.0)
    track = str(event.get("pid")), str(event.get("tid"))
    call = _call(name, category, track, times, _args(event))
    if times[0] <= times[1]:
        yield Slice(track, name, category, *times, call)
    elif call is not None:
        raise TimelineError(f"{path}: event {index}, {name}, has no time and duration")


def _args(event: Mapping[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _call(name: str, category: str, track: Track, times: tuple[float, float], args: dict[str, Any]) -> OtherCall | None:
    """Return the collective that an event is, if it is one."""
    named = args.get("Collective name")
    level, kind = _recognized(name, category, named)
    if not kind:
        return None
    kind = kind.lower().replace("_", "").replace("bcast", "broadcast")
    title = printable(named) if name == "record_param_comms" else name.partition("(")[0]
    rank = args["Rank"] if is_count(args.get("Rank")) else None
    return OtherCall(rank, title, kind, level, track, _nbytes(args), *times)


def _recognized(name: str, category: str, named: Any) -> tuple[Level, str]:
    """Return the level and the kind of a collective, which is empty for other events."""
    if category in COPIES:
        return Level.HOST, ""
    if category in ON_DEVICE:
        match = _NCCL.fullmatch(name)
        return Level.DEVICE, match[1] if match else _kind(named) if name.startswith("nccl") else ""
    if name == "record_param_comms":
        return Level.LAUNCH, _kind(named)
    if match := _MPI.fullmatch(name):
        return Level.LAUNCH if match[1] else Level.HOST, match[2]
    if match := _NCCL.fullmatch(name):
        return Level.LAUNCH, match[1]
    if (match := _PLAIN.fullmatch(name)) and match[2] != "::":
        return Level.HOST, match[3]
    return Level.LAUNCH, match[3] if match and match[1] in ("c10d", "_c10d_functional") else ""


def _kind(name: Any) -> str:
    match = _PLAIN.fullmatch(name) if isinstance(name, str) else None
    return match[3] if match else ""


def _nbytes(args: Mapping[str, Any]) -> int | None:
    """Return the bytes that a rank puts into a collective, if its event has them."""
    elements, size = args.get("In msg nelems"), _element(args.get("dtype"))
    if is_count(elements) and size:
        return elements * size
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if isinstance(shapes, list) and isinstance(types, list) and 0 < len(shapes) == len(types):
        sizes = [_element(element) for element in types]
        if all(sizes) and all(isinstance(shape, list) and all(map(is_count, shape)) for shape in shapes):
            total: int = sum(math.prod(shape) * size for shape, size in zip(shapes, sizes))
            return total
    return next((value for key in ("bytes", "nbytes", "size") if is_count(value := args.get(key))), None)


def _element(name: Any) -> int:
    """Return the bytes of an element, 0 if torch has no type of that name."""
    return _ELEMENT.get(str(name).lower().replace("c10::", "").replace(" ", ""), 0)


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value of a file is a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def printable(text: Any) -> str:
    """Return a name without the characters that control a terminal."""
    text = str(text)
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)
