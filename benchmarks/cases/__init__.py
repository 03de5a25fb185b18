"""A case to time: a collective, its buffers, the contenders that are called, and the right answer.

patterns.py      how each collective is called, a row each; a shape: one of them with its type, operator, root …
forms.py         blocking, nonblocking, persistent
counts.py        even and irregular shares, where ranks have counts of their own
scaling.py       which size a collective has on how many ranks
contents.py      numbers with a known right answer
lossy.py         the error bound of algorithms on codes
case.py          one rank's buffers at one size, and the check of their contents after the call
contenders.py    the code that serves a call: an algorithm on an engine, or native
loops.py         loops of calls as programs make them, for benchmarks.forms
"""
