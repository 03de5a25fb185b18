"""Advance operations in flight, whether or not the program calls mpicoll meanwhile.

This package does not depend on any collective. Compiled code advances the plans in a table (table.py) without the GIL
(driver.py). A Python thread polls everything else (thread.py).
"""
