"""`mpicoll tune`: measures which algorithm serves which bytes on these ranks, and writes it down as a table.

At every size all algorithms take part first, then the quickest of them once more, in chunks too. In both rounds go
along what `auto` chooses by its rules, and MPI's own collective as `auto` would call it, so with what that costs. What
the rules say stays unless something else is faster in the same rounds beyond doubt and by more than a little:
otherwise a table would hold what the machine happened to do.

cli.py      the command
tuner.py    candidates beside the rules, size after size, and the decision
rules.py    from what was found to the rules of a table
file.py     the file, where tables of other MPIs and layouts stay
"""
