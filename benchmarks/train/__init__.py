"""Train by each pattern of mpicoll.training, beside the same model on one rank.

    mpiexec -n 4 mpicoll train                                   # all patterns, one table
    mpiexec -n 8 mpicoll train zero3,data_parallel --svg DIR     # some, with pictures of memory and time
    mpiexec -n 4 mpicoll train zero3 --explore page.html         # a step, played on a page
    mpiexec -n 2 mpicoll train data_parallel --time              # with MPI's collectives and with mpicoll's, in turn

Losses must be those of one rank to rounding, or the command fails.

data.py         handwritten digits, and some Shakespeare
models.py       networks for the digits
patterns.py     each pattern: how it begins, and what theory says of it
compare.py      a pattern on all ranks, beside one
timing.py       steps with either's collectives, in turn
recorded.py     what a rank did in one step, for the page
pictures.py     memory and time of a step, drawn
cli.py          the command
"""
