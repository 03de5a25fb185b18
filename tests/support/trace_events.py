"""Check a trace against the Trace Event Format, as viewers read it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

REQUIRED = {"X": {"name", "cat", "pid", "tid", "ts", "dur", "args"}, "M": {"name", "pid", "tid", "args"}}
REQUIRED |= {phase: {"name", "cat", "pid", "tid", "ts", "id"} for phase in "sf"}


def check_format(content: dict[str, Any]) -> int:
    """Assert that slices of a track nest, and that every arrow goes forward from slice to slice; return how many."""
    events = json.loads(json.dumps(content))["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    ends: dict[str, dict[int, dict[str, Any]]] = {"s": {}, "f": {}}
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        if event["ph"] == "X":
            assert event["dur"] > 0, event
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] != "M":
            assert event["id"] not in ends[event["ph"]], f"two arrows of the same number: {event}"
            ends[event["ph"]][event["id"]] = event
    for track, spans in slices.items():
        open_ends: list[float] = []
        for began, ended in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= began + 2e-3:
                open_ends.pop()
            assert not open_ends or ended <= open_ends[-1] + 2e-3, f"slices of track {track} overlap at {began}"
            open_ends.append(ended)
    assert ends["s"].keys() == ends["f"].keys()
    for event in (*ends["s"].values(), *ends["f"].values()):
        track = slices[event["pid"], event["tid"]]
        assert any(began <= event["ts"] <= ended for began, ended in track), f"no slice at {event}"
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert named == {event["pid"] for event in events}
    return len(ends["s"])
