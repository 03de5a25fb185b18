"""Native and each algorithm side by side, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .contenders import AUTO
from .progress import terminal_width
from .records import Result
from .sizes import format_size
from .stats import Estimate, Ratio, geometric_mean

WIDTH = 160  # columns where the output is not a terminal
STYLES = {"faster": "green", "slower": "red"}
WRONG = "bold red"
LEGEND = (
    "µs: median over rounds of the longest time over ranks. ratio: native's time over this one's,\n"
    "paired by round; above 1 is faster. [95 %]: where the median lies with 95 % confidence."
)


def console() -> Console:
    """A console on standard output that prints tables whole in a file or a pipe, and never reads markup."""
    columns = terminal_width()
    return Console(
        force_terminal=columns is not None,
        width=columns or WIDTH,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def microseconds(seconds: float) -> str:
    """Three or four digits, no exponent.

    >>> [microseconds(t) for t in (1.234e-6, 45.67e-6, 0.0123456)]
    ['1.23', '45.7', '12346']
    """
    value = seconds * 1e6
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def table(results: Sequence[Result], title: str) -> Table:
    """Rows by size, then contender. The fastest valid one of each size is bold."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    made.add_column("size", justify="right", no_wrap=True)
    made.add_column("algorithm", max_width=34)  # the one that folds where a terminal is narrow
    for name in ("µs", "[95 %]", "ratio", "[95 %]"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    made.add_column("valid", no_wrap=True)
    for nbytes in dict.fromkeys(result.nbytes for result in results):
        same = [result for result in results if result.nbytes == nbytes]
        fastest = min((r.time.median for r in same if r.time and r.timing.valid), default=None)
        for place, result in enumerate(same):
            best = result.timing.valid and result.time is not None and result.time.median == fastest
            size = "" if place else format_size(nbytes)
            made.add_row(size, *_cells(result), style="bold" if best else "", end_section=result is same[-1])
    return made


def label_of(result: Result) -> str:
    """Who it was, and for auto what it chose."""
    contender, ran = result.timing.contender, result.timing.ran
    return (
        f"{contender.label}: {ran['algorithm']}" if contender.algorithm == AUTO and ran else contender.label
    )


def _cells(result: Result) -> list[str | Text]:
    time, ratio = result.time, result.ratio
    if time is None:
        return [label_of(result), "–", "", "", "", "not applicable", ""]
    cells: list[str | Text] = [label_of(result), microseconds(time.median), _times(time)]
    if ratio is None:
        cells += ["", "", ""]
    else:
        verdict = Text(ratio.verdict, STYLES.get(ratio.verdict, ""))
        cells += [f"{ratio.median:.2f}", _ratios(ratio), verdict]
    return [*cells, "yes" if result.timing.valid else Text("NO", WRONG)]


def _times(time: Estimate) -> str:
    return "–".join(map(microseconds, time.spread)) if time.spread else "?"


def _ratios(ratio: Ratio) -> str:
    return "–".join(f"{r:.2f}" for r in ratio.spread) if ratio.spread else "?"


def summary(results: Sequence[Result], label: str = AUTO) -> Table:
    """One row per collective: how one contender does against native over all sizes."""
    made = Table(title=f"{label} beside native", box=box.SIMPLE_HEAD, title_justify="left")
    made.add_column("collective")
    for name in ("geometric mean of ratios", "faster", "same", "slower", "invalid, of all"):
        made.add_column(name, justify="right")
    for collective in dict.fromkeys(r.shape.collective for r in results):
        all_of_it = [r for r in results if r.shape.collective == collective]
        compared = [r.ratio for r in all_of_it if r.timing.contender.label == label and r.ratio]
        verdicts = [ratio.verdict for ratio in compared]
        mean = f"{geometric_mean([r.median for r in compared]):.2f}" if compared else "–"
        counts = [str(verdicts.count(verdict)) for verdict in ("faster", "same", "slower")]
        invalid = sum(not r.timing.valid for r in all_of_it)
        made.add_row(collective, mean, *counts, Text(str(invalid), WRONG if invalid else ""))
    return made
