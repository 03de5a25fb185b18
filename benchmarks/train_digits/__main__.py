"""Train on handwritten digits: `python -m mpicoll.benchmarks.train_digits`."""

from .cli import main

if __name__ == "__main__":
    main()
