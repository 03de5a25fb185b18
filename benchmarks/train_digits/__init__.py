"""Train a network on scikit-learn's handwritten digits, each batch shared out among the ranks.

    mpiexec -n 4 python -m mpicoll.benchmarks.train_digits
    mpiexec -n 2 python -m mpicoll.benchmarks.train_digits --time

The first trains on 1 rank, then on all, and asserts that the losses agree to rounding and that the test
accuracy is at least 95 %. The second times epochs with MPI's own Allreduce and with mpicoll's, in turn; --json FILE
keeps them as `mpicoll bench` keeps its results, an epoch and its Allreduce calls in the place of a collective.

Each rank sums the gradients and the loss of its part of a batch into one bucket; Allreduce adds the buckets;
the sum is divided by the size of the whole batch. So parts of unequal size, or of none, weigh what they
should.

digits.py       the images
network.py      one hidden layer, in NumPy
trainer.py      one rank's part in training
agreement.py    losses on all ranks beside those on one
timing.py       epochs with either Allreduce, in turn
cli.py          the command
"""
