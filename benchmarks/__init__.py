"""Benchmarks, as `mpicoll.benchmarks`: collectives timed beside MPI's own, in one interleaved run.

sizes.py            "8:64M" and back; rates of links
stats.py            medians, intervals, paired ratios
patterns.py         how each collective is called: the table of them
forms.py            blocking, nonblocking, persistent
shares.py           even and irregular shares, where ranks have counts of their own
contents.py         numbers with a known right answer
case.py             one rank's buffers, and the check of what came of them
contenders.py       who is timed: an algorithm on an engine, or native
sync.py             how the ranks start a timed call together
measure.py          the timed loops
budget.py           when a size has been measured enough
overlap.py          how much of a nonblocking call work hides; compute.py is the work
bandwidth.py        algorithm and bus bandwidth
limits.py           what the hosts' links allow
driver.py           size after size, the time shared out
records.py          JSON lines
environment.py      what the numbers were measured on
table.py            the side-by-side table
progress.py         the bar on a terminal
session.py          a run on MPI.COMM_WORLD: communicators, output, results
asked.py            what a command line asks for
cli.py              `mpicoll bench`
report/             `mpicoll report`: results read, compared, drawn
osu/                `mpicoll bench … --osu`: what the OSU benchmarks measure, as they print it
voice.py            commands that all ranks run and of which rank 0 speaks
launch.py           mpiexec, as each MPI's wants it
hosts/              several hosts on one machine, with links of a given rate
cluster/            the standing comparison on such hosts
peers/              Gloo and IMB, timed beside ours
sidebyside.py       nine collectives in a minute
train_digits.py     data-parallel training on handwritten digits, of the network in mlp.py
"""
