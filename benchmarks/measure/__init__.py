"""Time calls, and compute statistics of the times.

rounds.py         the timed loops: every contender once a round, in an order drawn anew
sync.py           how the ranks start a timed call together
budget.py         when a size has been measured enough
compute.py        work of a given length, beside nonblocking calls
overlap.py        how much of such a call the work hides
one_process.py    rounds of functions in one process, without MPI
stats.py          medians, intervals, paired ratios
"""
