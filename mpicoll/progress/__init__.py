"""Advance operations in flight, whether or not the program calls mpicoll meanwhile.

This package is independent of collectives. It advances plans that are rows of a table (table.py) in compiled code,
without Python's lock (driver.py), and objects that it can poll (thread.py).
"""
