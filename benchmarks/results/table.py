"""Native and each algorithm side by side, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from mpicoll.cli.sizes import format_size

from ..cases.contenders import AUTO
from ..measure.overlap import Overlapped
from ..measure.stats import FASTER, NO_DIFFERENCE, SLOWER, Estimate, geometric_mean
from .records import Result
from .text import STYLES, WRONG, microseconds, rate, spread

VERDICTS = (FASTER, NO_DIFFERENCE, SLOWER)
LEGEND = (
    "µs: median over rounds of the longest time over ranks. ratio: native's time over this one's,\n"
    "paired by round; above 1 is faster. [95 %]: where the median lies with 95 % confidence."
)
BUS = "bus: what a rank's link carries per second, so that it compares with the link's rate (nccl-tests' busbw)."
OF_LIMIT = "of limit: the time the busiest host's link needs at least, over this one's; 100 % is as fast as can be."
OVERLAP = "overlap: how much of the call alone is hidden behind work that takes as long."
ERROR = "error: of what moves codes, the largest error and its bound, as parts of the largest element."
LATE_STARTS = "late: calls left out because a rank started late."


@dataclass(frozen=True)
class Column:
    """One of a table's: what it says of a result that was timed, and when there is such a thing to say."""

    name: str
    cell: Callable[[Result], str | Text]
    applies: Callable[[Result], bool] = lambda _: True
    explained: str = ""
    left: bool = False


COLUMNS = (
    Column("µs", lambda r: microseconds(_timed(r).median)),
    Column("[95 %]", lambda r: spread(_timed(r), microseconds)),
    Column("ratio", lambda r: f"{r.ratio.median:.2f}" if r.ratio else ""),
    Column("[95 %]", lambda r: spread(r.ratio, "{:.2f}".format) if r.ratio else ""),
    Column("verdict", lambda r: Text(r.ratio.verdict, STYLES.get(r.ratio.verdict, "")) if r.ratio else "", left=True),
    Column("bus", lambda r: rate(r.bandwidths[1]), lambda r: r.bandwidths[1] is not None, BUS),
    Column("of limit", lambda r: f"{r.of_limit:.0%}" if r.of_limit else "", lambda r: bool(r.limit), OF_LIMIT),
    Column("overlap", lambda r: overlap(r.overlap), lambda r: r.overlap is not None, OVERLAP),
    Column("late", lambda r: str(r.timing.late), lambda r: r.timing.late > 0, LATE_STARTS),
    Column("error", lambda r: error(r), lambda r: r.timing.error is not None, ERROR),
    Column("valid", lambda r: "yes" if r.timing.valid else Text("NO", WRONG), left=True),
)


def columns_for(results: Sequence[Result]) -> list[Column]:
    """Return the columns that say something of these results."""
    return [column for column in COLUMNS if any(map(column.applies, results))]


def legend(results: Sequence[Result]) -> str:
    """Return what the columns mean."""
    return "\n".join([LEGEND, *(column.explained for column in columns_for(results) if column.explained)])


def table(results: Sequence[Result], title: str) -> Table:
    """Return the rows by size, then contender. The fastest valid one of each size is bold."""
    columns = columns_for(results)
    rich_table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    rich_table.add_column("size", justify="right", no_wrap=True)
    rich_table.add_column("algorithm", max_width=34)  # the one that folds where a terminal is narrow
    for column in columns:
        rich_table.add_column(column.name, justify="left" if column.left else "right", no_wrap=True)
    for nbytes in dict.fromkeys(result.nbytes for result in results):
        same = [result for result in results if result.nbytes == nbytes]
        fastest = min((r.time.median for r in same if r.time and r.timing.valid), default=None)
        for place, result in enumerate(same):
            best = result.timing.valid and result.time is not None and result.time.median == fastest
            size, label = "" if place else format_size(nbytes), label_of(result)
            style = "bold" if best else ""
            rich_table.add_row(size, label, *_cells(result, columns), style=style, end_section=result is same[-1])
    return rich_table


def label_of(result: Result) -> str:
    """Return who it was, and for auto what it chose."""
    contender, ran = result.timing.contender, result.timing.ran
    return (
        f"{contender.label}: {ran['algorithm']}" if contender.algorithm == AUTO and ran else contender.label
    )


def _cells(result: Result, columns: Sequence[Column]) -> list[str | Text]:
    if result.time is not None:
        return [column.cell(result) for column in columns]
    why = {"µs": "–", "verdict": "too late" if result.timing.rounds else "not applicable"}
    return [why.get(column.name, "") for column in columns]


def _timed(result: Result) -> Estimate:
    assert result.time is not None
    return result.time


def error(result: Result) -> str:
    """Return the error of what moves codes, and its bound."""
    codes_error = result.timing.error
    return f"{codes_error.worst:.1e} ≤ {codes_error.bound:.1e}" if codes_error else "0"


def overlap(measured: Overlapped | None) -> str:
    """Return how much was hidden, with its interval."""
    if measured is None:
        return ""
    return f"{measured.percent.median:.0f} % [{spread(measured.percent, '{:.0f}'.format)}]"


def conclusion(results: Sequence[Result]) -> str:
    """Return one sentence: how many results are right, and where auto is faster or slower than native."""
    compared = [r.ratio for r in results if r.timing.contender.algorithm == AUTO and r.ratio]
    verdicts, right = [ratio.verdict for ratio in compared], sum(r.timing.valid for r in results)
    mean = geometric_mean([ratio.median for ratio in compared])
    return (
        f"{right} of {len(results)} timed calls gave the right answer; {AUTO} was faster than native in "
        f"{verdicts.count(FASTER)} of {len(compared)} and slower in {verdicts.count(SLOWER)}, {mean:.2f} times as fast "
        "in geometric mean; docs/PERFORMANCE.md has more machines and MPIs"
    )


def summary(results: Sequence[Result]) -> Table:
    """Return one row per collective: how auto, on whatever engine, does against native over all sizes."""
    rich_table = Table(title=f"{AUTO} beside native", box=box.SIMPLE_HEAD, title_justify="left")
    rich_table.add_column("collective")
    for name in ("geometric mean of ratios", *VERDICTS, "invalid, of all"):
        rich_table.add_column(name, justify="right")
    for collective in dict.fromkeys(r.shape.collective for r in results):
        all_of_it = [r for r in results if r.shape.collective == collective]
        compared = [r.ratio for r in all_of_it if r.timing.contender.algorithm == AUTO and r.ratio]
        verdicts = [ratio.verdict for ratio in compared]
        mean = f"{geometric_mean([r.median for r in compared]):.2f}" if compared else "–"
        counts = [str(verdicts.count(verdict)) for verdict in VERDICTS]
        invalid = sum(not r.timing.valid for r in all_of_it)
        rich_table.add_row(collective, mean, *counts, Text(str(invalid), WRONG if invalid else ""))
    return rich_table
