"""Several hosts on one machine, as `mpicoll.benchmarks.hosts`: links of a given rate, any MPI program.

    sudo python -m mpicoll.benchmarks.hosts --hosts 8 --rate 50Mbit mpicoll bench allreduce

brings up hosts, network namespaces on one switch, runs the command on them with the MPI of an environment, and takes
everything down. The link, not the processor, is what ranks wait for, so a few cores serve many hosts. It needs Linux
and root.

From Python:

    from pathlib import Path
    from mpicoll.benchmarks import hosts

    hosts.enter()                               # first of all: what follows runs inside the sandbox
    with hosts.Hosts(8, 50_000_000) as net:     # 8 hosts, 50 Mbit/s each way
        done = net.launch(["python", "program.py"], ranks_per_host=2, placement="cyclic",
                          python=Path(".venv-openmpi/bin/python"), timeout=60)
    print(done.status, done.output, done.timed_out)

Nothing is left behind, whatever happens: see sandbox.py. `enter` and `Hosts` raise `LaunchError`, a ValueError whose
message is one line for the user; in a command, end with it and exit status 2.

sandbox.py      what is made inside is gone when its first process is
network.py      hosts, a switch, the links
probe.py        whether a link reaches its rate
bed.py          launching programs on the hosts
rates.py        rates that a link can have
linux.py        calls of the kernel
"""

from ..launch import RATE_VARIABLE, LaunchError
from .rates import format_rate, parse_rate
from .sandbox import enter
from .testbed import Done, Hosts

__all__ = ["RATE_VARIABLE", "Done", "Hosts", "LaunchError", "enter", "format_rate", "parse_rate"]
