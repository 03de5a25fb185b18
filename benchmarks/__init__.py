"""Benchmarks, as `mpicoll.benchmarks`: collectives timed beside MPI's own, in one interleaved run.

What is run, by `mpicoll NAME` or `python -m mpicoll.benchmarks.NAME`; none of them imports another of the first group:

    sidebyside      nine collectives in a minute: `make bench`
    full/           what is to be reached between two ranks, in several launches: `make bench-full`
    cluster/        the standing comparison on several hosts: `make bench-cluster`
    tune/           `mpicoll tune`: a table of what auto is to choose
    train/          the patterns of mpicoll.training, beside one rank
    kernels         the reduction kernels beside NumPy and a copy
    parts           a call before its first message, part by part
    forms           calls in the forms that programs have: other counts each time, derived datatypes, own operators
    loaded          streams of small calls beside busy processes

    bench/          `mpicoll bench`, and what sidebyside and tune run on
    osu/            `mpicoll bench … --osu`: what the OSU benchmarks measure, as they print it
    report/         `mpicoll report`: results read, compared, drawn
    hosts/          several hosts on one machine, with links of a given rate

What they are made of, each above what it imports:

    peers/          Gloo and IMB, timed beside ours
    results/        records, environment, limits, tables
    measure/        the timed loops, how ranks start together, statistics
    cases/          what is called, by whom, with which right answer
    command/        what command lines share
    launch          mpiexec, with the options of each MPI
"""
