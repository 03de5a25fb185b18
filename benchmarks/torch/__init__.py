"""torch.distributed on mpicoll beside Gloo, in one process: start each under mpiexec, with a Python that has torch.

    mpiexec -n 2 python -m mpicoll.benchmarks.torch latency      # calls of c10d beside the same calls of a Comm
    mpiexec -n 4 python -m mpicoll.benchmarks.torch gpt          # a small GPT learns: losses, time and speed-up
    python -m mpicoll.benchmarks.hosts --hosts 8 --rate 50Mbit python -m mpicoll.benchmarks.torch steps --rounds 6

The default group is mpicoll's, a second one Gloo's, and contenders take turns, so that what disturbs the machine
disturbs them all.

models.py       what is trained: a network of equal layers, a small GPT
groups.py       both groups of all ranks
trainings.py    a model in DistributedDataParallel or fully_shard, on either group, with or without codecs
rounds.py       contenders in turn, from a barrier to the slowest rank
cli.py          the command `steps`, which needs no torch to be checked
steps.py        steps of training, communication for the most part
latency.py      single calls
gpt.py          a training
"""
