"""Parts that the benchmarks' commands share: reading sizes and lists, and printing by one rank for all.

spmd.py            commands that all ranks run and of which rank 0 speaks
checks.py          lists, numbers above 0
sizes.py           "8:64M" and back; rates of links
console.py         the terminal, and how wide it is
progress.py        the bar on it
results_file.py    where results go
"""
