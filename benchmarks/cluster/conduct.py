"""Launch after launch on layout after layout; what is known is on disk after each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..hosts import Hosts, parse_rate
from ..peers import Call, Measured, Peer
from ..peers.peer import PeerFailed
from ..peers.rows import beside, natives, pooled, together
from ..results.records import SCHEMA, Row
from .launches import OnLayout, bench
from .plan import Layout, Plan, launches

Say = Callable[[str], None]


@dataclass
class Found:
    """The results of one MPI on one layout so far."""

    mpi: str
    layout: Layout
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, list[list[Row]]] = field(default_factory=lambda: defaultdict(list))  # by collective: launches
    theirs: dict[tuple[str, Call], list[Measured]] = field(default_factory=lambda: defaultdict(list))

    @property
    def name(self) -> str:
        return f"{self.mpi}-{self.layout.name}"

    @property
    def rows(self) -> list[Row]:
        """Return the rows of native, of mpicoll, and of peers beside native, call by call."""
        rows = [row for collected in self.ours.values() for row in pooled(collected)]
        native = natives(rows)
        peers = [beside(native[call], name, together(m)) for (name, call), m in self.theirs.items() if call in native]
        places = {call: place for place, call in enumerate(native)}
        return sorted([*rows, *peers], key=lambda row: places.get(Call(row["collective"], row["size"]), len(places)))

    def write(self, directory: Path) -> Path:
        """Write all of it in place of what was there; an interruption leaves the one or the other."""
        file = directory / f"{self.name}.jsonl"
        run = {"kind": "run", "schema": SCHEMA, "environment": self.environment, "settings": self.settings}
        part = file.with_suffix(".part")
        part.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (run, *self.rows)), "utf-8")
        part.replace(file)
        return file


@dataclass
class Conductor:
    """Measures a plan. raw: a directory for what launches write, shared by all hosts; out: for results."""

    plan: Plan
    peers: Sequence[Peer]
    out: Path
    raw: Path
    say: Say
    step: Callable[[float], None]  # told the seconds that a launch, now over, had been expected to take
    command: str = ""
    results: list[Found] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, pythons: dict[str, Path], layouts: Iterable[Layout]) -> None:
        """Run every MPI, given by its Python, on every layout."""
        for layout in layouts:
            with Hosts(layout.hosts, parse_rate(self.plan.rate)) as net:
                for mpi, python in pythons.items():
                    self.results.append(Found(mpi, layout, self._settings(layout)))
                    self._measure(net, python, self.results[-1])

    def _settings(self, layout: Layout) -> dict[str, Any]:
        return {
            "command": self.command,
            "layout": layout.name,
            "cycles": self.plan.cycles,
            "peers": {peer.name: peer.about for peer in self.peers},
        }

    def _measure(self, net: Hosts, python: Path, result: Found) -> None:
        peers = {peer.name: peer for peer in self.peers}
        order = launches(self.plan.collectives, list(peers), self.plan.cycles)
        for number, (_, name) in enumerate(order, 1):
            p, peer = result.layout.ranks, peers.get(name)
            takes = self.plan.peer_takes(peer, p) if peer else self.plan.bench_takes(name, p)
            self.say(f"{result.name}, {number} of {len(order)}: {name}, about {takes:.0f} s")
            launch = OnLayout(net, result.layout, python, takes)
            failure = self._peer(launch, peer, result) if peer else self._bench(launch, name, result)
            if failure:
                self.failures.append(f"{result.name}: {failure}")
                self.say(self.failures[-1])
            result.write(self.out)
            self.step(takes)

    def _bench(self, launch: OnLayout, collective: str, result: Found) -> str:
        """Keep the results of a launch; return why some are missing, or an empty string."""
        lines = bench(launch, self.plan, collective, self.raw / "bench.jsonl")
        result.environment = result.environment or lines.environment
        result.ours[collective].append(lines.rows)
        return lines.failure

    def _peer(self, launch: OnLayout, peer: Peer, result: Found) -> str:
        """Keep the results of a launch; return why some are missing, or an empty string."""
        failure = ""
        try:
            timed = peer.measure(launch, self.plan.rounds(launch.ranks), self.raw)
        except PeerFailed as error:
            timed, failure = error.measured, str(error)
        for call, measured in timed.items():
            result.theirs[peer.name, call].append(measured)
        return failure

    @property
    def all_valid(self) -> bool:
        """Return whether no answer was wrong."""
        return all(row["valid"] is not False for result in self.results for row in result.rows)
