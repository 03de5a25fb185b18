"""The version of mpicoll."""

__version__ = "0.1.0"
