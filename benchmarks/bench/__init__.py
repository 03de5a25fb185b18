"""`mpicoll bench`: algorithms of collectives timed beside MPI's own, in one interleaved run.

cli.py        the command
options.py    what its command line asks for, checked
harness.py    a run on MPI.COMM_WORLD: communicators, output, results
driver.py     size after size, the time shared out
"""
