"""`mpicoll bench` on the hosts of a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..hosts import Done, Hosts
from ..results.records import Lines, read
from .plan import Layout, Plan, size_of

PATIENCE, AT_LEAST = 6, 120.0  # a launch that takes so many times as long as planned, and so many seconds, is ended

WRONG = 1  # exit status of `mpicoll bench` after a wrong answer
PRECISION = 2  # per cent: a size whose medians are known so well is left, and that is soon where calls are short


@dataclass(frozen=True)
class OnLayout:
    """Starts programs on all ranks of a layout, with the mpiexec of an environment, given by its Python."""

    net: Hosts
    layout: Layout
    python: Path
    limit: float  # seconds

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def __call__(
        self, arguments: Sequence[str], *, python: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Done:
        """Wait for it."""
        return self.net.launch(
            arguments,
            ranks_per_host=self.layout.ranks_per_host,
            placement=self.layout.placement,
            python=python or self.python,
            env=env,
            timeout=max(PATIENCE * self.limit, AT_LEAST),
        )


def is_whole(lines: Lines, done: Done) -> bool:
    """Return whether a launch came to its end: its status is 0, or 1 where an answer was wrong."""
    wrong = any(row["valid"] is False for row in lines.rows)
    return bool(lines.rows) and (done.status == 0 or (done.status == WRONG and wrong))


def bench(launch: OnLayout, plan: Plan, collective: str, file: Path) -> Lines:
    """Return one launch for all sizes of a collective."""
    file.unlink(missing_ok=True)
    done = launch(words(plan, collective, launch.ranks, file))
    lines = read(file)
    if not is_whole(lines, done):
        output = done.output.strip().splitlines() or ["it said nothing"]
        how = "time was up" if done.timed_out else f"status {done.status}"
        lines.failure = f"mpicoll bench {collective}: {how}: {output[-1].strip()}"
    return lines


def words(plan: Plan, collective: str, p: int, file: Path) -> list[str]:
    """Return the command."""
    options = {
        "sizes": ",".join(str(size_of(collective, n, p)) for n in plan.sizes),
        "algorithms": ",".join(plan.contenders(collective, p)),
        "seconds": f"{len(plan.sizes) * plan.seconds_of(collective, p):.3f}",
        "precision": str(PRECISION),
        "warmup": "1",
        "rate": plan.rate,
        "json": str(file),
    }
    return ["mpicoll", "bench", collective, *(word for name, value in options.items() for word in (f"--{name}", value))]
