"""Timelines: what every rank's collectives did, and when, as a file of the Trace Event Format.

recorder.py records on one rank, clock.py brings the ranks' clocks together, collect.py gathers them. The other modules
need no MPI: events.py makes the file's events, read.py reads it, waits.py and path.py find where time went.
"""
