"""Compare everything between two ranks of one machine in several launches of each part, and say what is reached.

    python -m mpicoll.benchmarks.full --launches 5

Runs on the MPI of its own environment. Exit status: 0 whatever was reached, 1 if an answer was wrong or a launch
failed.

figures.py  what is to be reached, and what launches say of it
cli.py      the command
"""
