"""Calls and their right answers, buffers of every form, checks and the harness: the code that tests share."""
