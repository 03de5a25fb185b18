"""Results of measurements: kept as JSON lines, shown as a table.

records.py        JSON lines, written and read
environment.py    what the numbers were measured on
bandwidth.py      algorithm and bus bandwidth
limits.py         what the hosts' links allow
table.py          native and each algorithm side by side
text.py           times, rates and intervals as people read them
"""
