"""The standing comparison, as `python -m mpicoll.benchmarks.cluster`: several hosts, native, ours, peers, the limit.

plan.py         layouts, what a size means, how long everything takes
launches.py     a layout's hosts and ranks, and `mpicoll bench` on them
conduct.py      launch after launch, pooled and kept as they come
summary.py      the table at the end
installed.py    which MPIs and peers are here
cli.py          the command
"""
