"""Random programs of collectives, played by mpicoll and held against NumPy and the MPI's own.

`program` says what a program is, `kinds` what datatypes and operators there are, `memory` and `buffers` what one call
reads and must leave behind, `play` carries a program out on one rank, `draw` makes them up, `drive` is hypothesis on
rank 0 with the other ranks in tow, `record` keeps account.
"""
