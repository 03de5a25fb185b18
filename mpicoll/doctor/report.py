"""All checks, in the order in which their findings are reported, and the format of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from . import files, launchers, placement, sameness
from .finding import WARNING, WRONG, Facts, Finding, named, numbered

Check = Callable[[Facts], Iterator[Finding]]


def complete(facts: Facts) -> Iterator[Finding]:
    """Check that every rank could gather its facts."""
    for who, why in sameness.groups(facts["ranks"], lambda rank: rank.get("failed")):
        if why is not None:
            yield Finding(
                WARNING,
                f"{named(who)} could not look at everything: some checks were not made",
                why,
                "mpicoll info, which asks for less",
            )


CHECKS: tuple[Check, ...] = (
    launchers.one_world,
    launchers.all_of_it,
    sameness.one_mpi,
    sameness.same_software,
    sameness.same_variables,
    sameness.same_engine,
    placement.oversubscribed,
    placement.shared_cpus,
    placement.shared_cores,
    placement.bound,
    placement.threads,
    placement.alone,
    files.settings,
    files.kernel_cache,
    complete,
)


def findings(facts: Facts, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Return the findings of all checks, errors first. A check that raises does not stop the others."""
    results: list[Finding] = []
    for check in checks:
        try:
            results.extend(check(facts))
        except Exception as error:
            name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
            results.append(_not_made(name, error))
    return sorted(results, key=lambda finding: finding.severity != WRONG)


def _not_made(name: str, error: Exception) -> Finding:
    seen = f"{type(error).__name__}: {error}"
    return Finding(WARNING, f"the check {name} could not be made", seen, "mpicoll info --check --json: all facts")


def status(results: Iterable[Finding]) -> int:
    """Return the exit status: 1 if anything is wrong; warnings may be meant."""
    return int(any(finding.severity == WRONG for finding in results))


def lines(facts: Facts, results: Sequence[Finding]) -> str:
    """Return the report as text: what was checked, then each finding as a block."""
    ranks = f"{numbered(len(facts['ranks']), 'rank')} on {numbered(facts['hosts'], 'host')}"
    out = [f"{ranks}, {facts['mpi']['library']}"]
    for finding in results:
        out += [f"{finding.severity}: {finding.what}", f"  seen: {finding.seen}", f"  type: {finding.type}"]
    if not results:
        out.append(f"nothing wrong: {len(CHECKS)} things looked at")
    return "\n".join(out)
