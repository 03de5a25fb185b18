"""Every character is the one that OMB 7.4 prints; the lines marked below were printed by its programs."""

from __future__ import annotations

import pytest

from mpicoll.benchmarks.cases.forms import FORMS
from mpicoll.benchmarks.osu import layout
from mpicoll.benchmarks.osu.options import Options
from mpicoll.benchmarks.osu.programs import NAMES, PAIRS, program

ALL = (50, 90, 99)
LATENCY_ROW = {
    layout.AVERAGE: 0.7149, layout.LEAST: 0.65, layout.MOST: 0.78, layout.ITERATIONS: 10,
    layout.VALIDATION: True, 50: 0.69, 90: 0.78, 99: 0.781,
}
BUSY_ROW = {
    layout.OVERALL: 3.57, layout.COMPUTE: 2.24, layout.INIT: 0.57, layout.TEST: 0.63, layout.WAIT: 0.03,
    layout.PURE: 1.64, layout.LEAST_PURE: 1.52, layout.MOST_PURE: 1.75, layout.OVERLAP: 18.74,
    layout.VALIDATION: True, 50: 3.52, 90: 3.80, 99: 3.95,
}
SPEED_ROW = {layout.SPEED: 2.83, layout.VALIDATION: True, 50: 2.69, 90: 3.15, 99: 3.19}

# Collective or pair, form, options, size, row, and the header and the line that OMB printed.
PRINTED = {
    "blocking": ("allreduce", "blocking", Options(), 2, LATENCY_ROW, (
        "# Size       Avg Latency(us)\n"
        "2                       0.71\n")),
    "full": ("allreduce", "blocking", Options(full=True, validate=True, percentiles=ALL), 2, LATENCY_ROW, (
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation"
        "  P50 Tail Lat(us)  P90 Tail Lat(us)  P99 Tail Lat(us)\n"
        "2                       0.71              0.65              0.78          10              Pass"
        "              0.69              0.78              0.78\n")),
    "unsized": ("barrier", "blocking", Options(full=True), 0, {
        layout.AVERAGE: 3995.69, layout.LEAST: 3994.37, layout.MOST: 3998.11, layout.ITERATIONS: 20}, (
        "# Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
        "          3995.69           3994.37           3998.11          20\n")),
    "nonblocking": ("allreduce", "nonblocking", Options(validate=True), 8, BUSY_ROW, (
        "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)        Validation\n"
        "8                       3.57              2.24              1.64             18.74              Pass\n")),
    "nonblocking, full": (
        "allreduce", "nonblocking", Options(full=True, validate=True, percentiles=ALL), 8, BUSY_ROW, (
        "# Size           Overall(us)       Compute(us)    Coll. Init(us)      MPI_Test(us)      MPI_Wait(us)"
        "    Pure Comm.(us)     Min Comm.(us)     Max Comm.(us)        Overlap(%)        Validation"
        "  P50 Tail Lat(us)  P90 Tail Lat(us)  P99 Tail Lat(us)\n"
        "8                       3.57              2.24              0.57              0.63              0.03"
        "              1.64              1.52              1.75             18.74              Pass"
        "              3.52              3.80              3.95\n")),
    "nonblocking, unsized": ("barrier", "nonblocking", Options(full=True), 0, {
        layout.OVERALL: 3046.24, layout.COMPUTE: 12.68, layout.INIT: 6.08, layout.TEST: 0.0, layout.WAIT: 3027.14,
        layout.PURE: 11.50, layout.LEAST_PURE: 11.26, layout.MOST_PURE: 11.67, layout.OVERLAP: 0.0}, (
        "# Overall(us)       Compute(us)    Coll. Init(us)      MPI_Test(us)      MPI_Wait(us)    Pure Comm.(us)"
        "     Min Comm.(us)     Max Comm.(us)        Overlap(%)\n"
        "      3046.24             12.68              6.08              0.00           3027.14             11.50"
        "             11.26             11.67              0.00\n")),
    "percentiles of one and three digits": (
        "allreduce", "blocking", Options(percentiles=(5, 90, 100)), 2,
        {layout.AVERAGE: 24.70, 5: 0.0, 90: 24.96, 100: 158.10}, (
        "# Size       Avg Latency(us)   P5 Tail Lat(us)  P90 Tail Lat(us)  P100 Tail Lat(us)\n"
        "2                      24.70              0.00             24.96            158.10\n")),
    "latency": ("latency", "blocking", Options(validate=True, percentiles=ALL), 1, LATENCY_ROW, (
        "# Size       Avg Latency(us)        Validation  P50 Tail Lat(us)  P90 Tail Lat(us)  P99 Tail Lat(us)\n"
        "1                       0.71              Pass              0.69              0.78              0.78\n")),
    "bw": ("bw", "blocking", Options(validate=True, percentiles=ALL), 1, SPEED_ROW, (
        "# Size      Bandwidth (MB/s)        Validation P50 Tail BW(MB/s) P90 Tail BW(MB/s) P99 Tail BW(MB/s)\n"
        "1                       2.83              Pass              2.69              3.15              3.19\n")),
}  # fmt: skip


@pytest.mark.parametrize(("benchmark", "form", "asked", "size", "row", "printed"), PRINTED.values(), ids=PRINTED)
def test_headings_and_rows(benchmark, form, asked, size, row, printed):
    measured = program(benchmark, form)
    assert layout.header(measured, asked) + layout.line(measured, asked, size, row) == printed


def test_lines_of_failures():
    measured, row = program("bibw", "blocking"), {**SPEED_ROW, layout.VALIDATION: False}
    assert layout.line(measured, Options(validate=True), 1 << 20, row) == f"1048576{2.83:21.2f}{'Fail':>18}\n"
    words = "DATA VALIDATION ERROR: osu_bibw exited with status 1 on message size 4.\n"
    assert layout.failure(measured, 4) == words


def test_preambles():
    assert layout.preamble(program("allreduce", "blocking")) == "\n# OSU MPI Allreduce Latency Test v7.4\n"
    assert layout.preamble(program("allreduce", "nonblocking")) == (
        "\n# OSU MPI Non-blocking Allreduce Latency Test v7.4\n"
        "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n"
    )
    assert layout.datatype("mpi_float") == "# Datatype: MPI_FLOAT.\n"


TITLES = """
osu_ibarrier OSU MPI Non-blocking Barrier Latency Test
osu_bcast OSU MPI Broadcast Latency Test
osu_ibcast OSU MPI Non-Blocking Broadcast Latency Test
osu_ireduce_scatter OSU MPI Non-blocking Reduce_scatter Latency Test
osu_alltoall OSU MPI All-to-All Personalized Exchange Latency Test
osu_ialltoall OSU MPI Non-blocking All-to-All Latency Test
osu_ialltoallv OSU MPI Non-blocking All-to-Allv Personalized Exchange Latency Test
osu_ialltoallw OSU MPI Non-blocking All-to-Allw Personalized Exchange Latency Test
osu_alltoall_persistent OSU MPI All-to-All Personalized Exchange Persistent Latency Test
osu_bcast_persistent OSU MPI Broadcast Persistent Latency Test
osu_gatherv_persistent OSU MPI Gatherv Persistent Latency Test
osu_latency OSU MPI Latency Test
osu_bw OSU MPI Bandwidth Test
osu_bibw OSU MPI Bi-Directional Bandwidth Test
"""


def test_titles():
    programs = [program(name, form) for form in FORMS for name in NAMES] + [program(name, "blocking") for name in PAIRS]
    titles = {measured.name: layout.title(measured) for measured in programs}
    assert len(titles) == 3 * 14 + 3
    for line in TITLES.split("\n")[1:-1]:
        name, _, title = line.partition(" ")
        assert titles[name] == f"# {title} v7.4"
