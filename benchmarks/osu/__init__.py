"""`mpicoll bench … --osu`: what the OSU micro-benchmarks (OMB) measure, in their words, as they print it.

Reproduced is OMB 7.4 of April 2024, whose programs are osu_allreduce, osu_iallreduce, osu_allreduce_persistent and
their like, osu_latency, osu_bw and osu_bibw: options and their defaults, which sizes, how many iterations, where
barriers are, what is averaged over what, and every character of the standard output. Not the same are

    errors          one line on standard error and exit status 2, where OMB prints its help, or continues
    MPI_CHAR        collectives pass it as MPI_SIGNED_CHAR, the same byte in a type for which MPI defines a sum
    -c              every rank checks what it received, bit for bit; a check that fails ends the run at once

programs.py      the programs: titles, options, which sizes fit in memory
options.py       what the options' values mean; iterations and sizes
layout.py        headers and rows
averages.py      over iterations and ranks; percentiles
loops.py         iterations, and what surrounds a timed call
collective.py    the collectives' timed calls
pair.py          latency and bandwidth between two ranks
run.py           type after type, size after size
cli.py           the command
either.py        `mpicoll bench`, which hands over when it reads --osu
"""
