"""The commands: `python -m mpicoll.benchmarks.torch`."""

import click

from mpicoll.cli.group import Later, OneLine

HERE = "benchmarks.torch"


@click.group(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
def torch() -> None:
    """Time torch.distributed on mpicoll and on Gloo: start a command under mpiexec."""


for name, module, about in (
    ("steps", "cli", "Time steps of DistributedDataParallel and of fully_shard."),
    ("latency", "latency", "Time calls of c10d, and the calls of a Comm that they become."),
    ("gpt", "gpt", "Train a small GPT by each, and hold the losses against each other."),
):
    torch.add_command(Later(name, f"{HERE}.{module}:{name}", about))

if __name__ == "__main__":
    torch.main(prog_name=f"python -m mpicoll.{HERE}")
