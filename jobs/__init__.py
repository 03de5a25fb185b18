"""Scaling runs under Slurm, as `mpicoll.jobs` and `mpicoll jobs`.

site.py         what a cluster is like, in a TOML file; examples in sites/
kinds.py        sweep, tune, train, torch, sanity: the steps of each kind of job
study.py        steps, jobs, and their directory
render.py       job scripts, from templates/
slurm.py        queries and commands to Slurm
gather.py       what jobs left, and the report of it
stage.py        the environment, copied to the nodes' own disks
testbed.py      a Slurm on this machine alone, to try it on
"""
