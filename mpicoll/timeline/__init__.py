"""Timelines: what every rank's collectives did, and when, as a file of the Trace Event Format.

recorder.py and spans.py record on one rank, clock.py brings times to one clock, timeline.py gathers those of all ranks.
The other modules need no MPI: match.py pairs sends with receives, drift.py corrects clocks by them, steps.py and
tracks.py place them, trace_events.py makes the file, read.py reads it, merge.py lays several of one run together, and
waits.py, threads.py and path.py find where the time went. otf2_archive.py writes an archive for other tools;
other_traces.py, other_events.py and intervals.py read what other programs recorded.
"""
