"""`mpicoll tune`: measures which algorithm serves which bytes on these ranks, and writes it down as a table.

At every size the algorithms that the cost model puts near its best are measured first, or all (--all), then the fastest
of them once more, in chunks too. Both rounds also have what `auto` chooses, and MPI's own collective as `auto` would
call it, so with what that costs. The choice of `auto` stays unless something else is faster in the same rounds beyond
doubt and by more than a little: otherwise a table would hold what the machine happened to do.

cli.py        the command
shortlist.py  which candidates are worth measuring
tuner.py      candidates beside the rules, size after size, and the decision
rules.py      from measurements to the rules of a table
file.py       the file, where tables of other MPIs and layouts stay
"""
