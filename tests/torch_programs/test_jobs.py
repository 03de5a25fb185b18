"""The kind of job that trains by torch, under a real Slurm on this machine."""

import pytest
from support.slurm import jobs, outputs, results

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def test_a_job_of_torch(run, tmp_path):
    small = ("--seconds", 2, "--", "--width", 64, "--layers", 2)
    jobs(run, "render", "torch", "--site", "site.toml", "--nodes", "1,2", *small)
    jobs(run, "submit", "torch")
    assert "COMPLETED" in jobs(run, "status", "--wait", "torch"), outputs(tmp_path)
    assert "2 of 2 steps are complete" in jobs(run, "collect", "torch")
    rows = results(tmp_path / "torch/results/n2-torch.jsonl")
    assert {(row["collective"], row["algorithm"]) for row in rows} == {
        (f"step of {kind}; native: Gloo", how)
        for kind in ("DDP", "fully_shard") for how in ("native", "auto", "int8")
    }
    assert all(row["ranks"] == 2 and (row["ratio"] is None) == (row["algorithm"] == "native") for row in rows)
