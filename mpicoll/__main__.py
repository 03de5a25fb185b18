"""`python -m mpicoll` is `mpicoll`."""

from .cli import main

main(prog_name="mpicoll")
