"""The table at the end: what each pattern sent, waited for and held, beside theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Result:
    """The measurements of one pattern. Bytes and times are per step, of the rank with the most unless a rank is named.

    difference: the largest relative difference between the losses of these ranks and of a run on one rank. hidden_s:
    how much longer ranks wait without overlap of communication and computation; None if it was not measured.
    """

    pattern: str
    ranks: int
    loss: float
    difference: float
    sent: float
    sent_expected: float
    root_sent: float
    root_received: float
    calls: float
    step_s: float
    exposed_s: float
    hidden_s: float | None
    parameters: float
    parameters_expected: float
    gradients: float
    gradients_expected: float
    state: float
    state_expected: float


def report(results: Sequence[Result]) -> Table:
    """Return a table with a row for each pattern; of two numbers in a cell, the second is the theoretical one."""
    from rich.table import Table  # here: the patterns do without

    ranks = results[0].ranks if results else 0
    table = Table(title=f"training on {ranks} ranks; measured / theory, MiB and ms a step", title_justify="left")
    for name in ("pattern", "loss", "against one rank", "sent", "rank 0: sent, received", "calls"):
        table.add_column(name, justify="left" if name == "pattern" else "right")
    for name in ("step", "exposed", "hidden", "parameters", "gradients", "optimizer state"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            result.pattern,
            f"{result.loss:.6f}",
            f"{result.difference:.0e}",
            _both(result.sent, result.sent_expected),
            f"{_mib(result.root_sent)}, {_mib(result.root_received)}",
            f"{result.calls:.0f}",
            f"{1e3 * result.step_s:.1f}",
            f"{1e3 * result.exposed_s:.1f}",
            "–" if result.hidden_s is None else f"{1e3 * result.hidden_s:.1f}",
            _both(result.parameters, result.parameters_expected),
            _both(result.gradients, result.gradients_expected),
            _both(result.state, result.state_expected),
        )
    return table


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.2f}"


def _both(measured: float, expected: float) -> str:
    return f"{_mib(measured)} / {_mib(expected)}"
