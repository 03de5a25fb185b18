"""A step, drawn: what a rank holds in the course of it, and when ranks compute and communicate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.training import memory
from mpicoll.training.account import Event

from ..report.look import COLOURS

Seen = tuple[list[Event], list[tuple[float, tuple[int, ...]]]]  # calls and history of one rank


def write(directory: Path, name: str, ranks: Sequence[Seen]) -> None:
    """Write NAME-memory.svg, of rank 0, and NAME-time.svg, of all ranks."""
    import vl_convert

    directory.mkdir(parents=True, exist_ok=True)
    for what, chart in (("memory", held(ranks[0][1])), ("time", timeline([events for events, _ in ranks]))):
        (directory / f"{name}-{what}.svg").write_text(vl_convert.vegalite_to_svg(chart.to_json()))


def held(history: Sequence[tuple[float, tuple[int, ...]]]) -> Any:
    """Return a chart of the bytes of each kind over a step."""
    import altair as alt

    rows = [
        {"ms": 1e3 * at, "kind": kind, "MiB": nbytes / 2**20}
        for at, every in history
        for kind, nbytes in zip(memory.MODEL, every)
    ]
    colour = alt.Color("kind:N", title=None, sort=list(memory.MODEL), scale=alt.Scale(range=list(COLOURS)))
    area = alt.Chart(alt.InlineData(values=rows), width=480, height=200).mark_area(interpolate="step-after")
    return area.encode(alt.X("ms:Q"), alt.Y("MiB:Q", stack=True, title="MiB held by rank 0"), colour)


def timeline(ranks: Sequence[Sequence[Event]]) -> Any:
    """Return a chart of calls: those in flight, and those that a rank waits for; between them it computes."""
    import altair as alt

    rows = [
        {"rank": rank, "from": 1e3 * begin, "to": 1e3 * end, "what": what, "call": event.name}
        for rank, events in enumerate(ranks)
        for event in events
        for what, begin, end in (("in flight", event.began, event.waited), ("waited for", event.waited, event.ended))
        if end > begin
    ]
    colour = alt.Color("what:N", title=None, scale=alt.Scale(range=[COLOURS[3], COLOURS[4]]))
    bars = alt.Chart(alt.InlineData(values=rows), width=480, height=alt.Step(22)).mark_bar(opacity=0.8)
    where = alt.X("from:Q", title="ms"), alt.X2("to:Q"), alt.Y("rank:N"), alt.YOffset("what:N")
    return bars.encode(*where, colour, alt.Tooltip("call:N"))
