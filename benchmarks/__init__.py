"""Benchmarks, as `mpicoll.benchmarks`: collectives timed beside MPI's own, in one interleaved run.

sizes.py            "8:64M" and back
stats.py            medians, intervals, paired ratios
patterns.py         how each collective is called: the table of them
shares.py           even and uneven shares, where ranks have counts of their own
contents.py         numbers with a known right answer
case.py             one rank's buffers, and the check of what came of them
contenders.py       who is timed: an algorithm on an engine, or native
measure.py          the timed loops
driver.py           size after size, the time shared out
records.py          JSON lines
environment.py      what the numbers were measured on
table.py            the side-by-side table
progress.py         the bar on a terminal
session.py          a run on MPI.COMM_WORLD: communicators, output, results
cli.py              `mpicoll bench`
osu/                `mpicoll bench … --osu`: what the OSU benchmarks measure, as they print it
voice.py            commands that all ranks run and of which rank 0 speaks
sidebyside.py       nine collectives in a minute
train_digits.py     data-parallel training on handwritten digits, of the network in mlp.py
"""
