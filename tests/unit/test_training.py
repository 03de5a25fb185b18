"""Training without ranks: layers' gradients, optimizers, what is counted of memory, and the command's words."""

from __future__ import annotations

import gc
import json
import re
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

import mpicoll
from mpicoll.benchmarks.train import data, models, pictures
from mpicoll.benchmarks.train.cli import train
from mpicoll.benchmarks.train.patterns import PATTERNS, cube
from mpicoll.training import Adam, BatchNorm, Experts, Sgd, memory, theory, transformer
from mpicoll.training.account import Event
from mpicoll.training.checks import finite
from mpicoll.training.data_parallel import buckets
from mpicoll.training.flat import Flat
from mpicoll.training.modules import (
    Bias,
    Gelu,
    LayerNorm,
    Linear,
    Parameter,
    Relu,
    Residual,
    Sequential,
    cross_entropy,
)

ROOT = Path(__file__).resolve().parents[2]
DRAW = np.random.default_rng(11)


def draw(*shape):
    return DRAW.normal(size=shape)


def of_experts(comm):
    experts = [Sequential(Linear(draw(6, 5)), Relu(), Linear(draw(5, 6))) for _ in range(3)]
    return Experts(comm, draw(6, 3), experts)


LAYERS = {
    "linear": (lambda comm: Linear(draw(6, 4), draw(4)), (5, 6)),
    "linear of tokens": (lambda comm: Linear(draw(6, 4)), (2, 3, 6)),
    "bias": (lambda comm: Bias(draw(6)), (2, 3, 6)),
    "relu": (lambda comm: Relu(), (5, 6)),
    "gelu": (lambda comm: Gelu(), (5, 6)),
    "layer norm": (lambda comm: LayerNorm(6), (2, 3, 6)),
    "batch norm": (lambda comm: BatchNorm(comm, 6), (7, 6)),
    "residual": (lambda comm: Residual(Linear(draw(6, 6)), Gelu()), (5, 6)),
    "attention": (lambda comm: transformer.Attention(3, 2), (2, 4, 18)),
    "columns": (lambda comm: models.Columns(), (7, 6)),
    "switched": (lambda comm: models.Switched(comm, models.Columns()), (7, 6)),
    "experts": (of_experts, (9, 6)),
}


def slope(loss, array, at, step=1e-6):
    """Return the change of a loss with one number of an array."""
    before, slopes = array[at], []
    for change in (step, -step):
        array[at] = before + change
        slopes.append(loss())
    array[at] = before
    return (slopes[0] - slopes[1]) / (2 * step)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_slopes(name):
    """Of the input and of every parameter, for a loss in which each output has a weight of its own."""
    make, shape = LAYERS[name]
    layer, x = make(mpicoll.Comm(MPI.COMM_SELF)), draw(*shape)
    every = list(layer.parameters())
    for parameter in every:
        parameter.zero_grad()
    y, saved = layer.forward(x)
    weights = draw(*y.shape)
    dx = layer.backward(weights, saved)
    loss = lambda: float((layer.forward(x)[0] * weights).sum())
    for array, gradient in ((x, dx), *((parameter.value, parameter.grad) for parameter in every)):
        assert array.shape == gradient.shape
        for at in [tuple(DRAW.integers(0, n) for n in array.shape) for _ in range(6)]:
            assert gradient[at] == pytest.approx(slope(loss, array, at), rel=2e-5, abs=1e-6), (name, at)


def test_the_transformer_s_gradients_are_slopes():
    shape = transformer.Shape(9, context=5, width=8, heads=2, blocks=2)
    model = Sequential(*transformer.units(shape, mpicoll.Comm(MPI.COMM_SELF)))
    x, labels = DRAW.integers(0, 9, (3, 5)), DRAW.integers(0, 9, (3, 5))
    for parameter in model.parameters():
        parameter.zero_grad()
    scores, saved = model.forward(x)
    model.backward(cross_entropy(scores, labels)[1], saved)
    loss = lambda: cross_entropy(model.forward(x)[0], labels)[0]
    for parameter in model.parameters():
        at = tuple(DRAW.integers(0, n) for n in parameter.shape)
        assert parameter.grad[at] == pytest.approx(slope(loss, parameter.value, at), rel=1e-5, abs=1e-6)


def test_no_samples_have_no_loss():
    loss, dy = cross_entropy(np.zeros((0, 4)), np.zeros(0, int))
    assert loss == 0 and dy.shape == (0, 4)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="width must be a multiple of heads"):
        transformer.Shape(9, width=10, heads=4)


@pytest.mark.parametrize("optimizer", [Sgd(0.05), Sgd(0.2, momentum=0.0), Adam(0.1)], ids=["momentum", "plain", "adam"])
def test_optimizers_go_down_hill(optimizer):
    value, target = np.array([3.0, -2.0]), np.array([1.0, 1.0])
    for _ in range(200):
        optimizer.update("x", value, 2 * (value - target))
    assert np.allclose(value, target, atol=1e-2)


def test_adam_s_first_step_is_its_rate():
    value = np.array([1.0, 1.0])
    Adam(0.01).update("x", value, np.array([5.0, -1e-3]))
    assert np.allclose(value, [0.99, 1.01], rtol=1e-5)


def test_memory_counts_what_lives_and_no_views():
    gc.collect()
    before = memory.held(memory.GRADIENTS)
    with memory.watched() as watch:
        gradients = memory.array(memory.GRADIENTS, 100, float)
        other = memory.array(memory.GRADIENTS, (2, 25), np.float32)
        view = gradients[10:]
        assert memory.held(memory.GRADIENTS) - before == 1000
        del other
        del gradients
        assert memory.held(memory.GRADIENTS) - before == 800  # the view has it
        del view
        assert memory.held(memory.GRADIENTS) == before
    assert watch.peak[memory.GRADIENTS] - before == 1000 and len(watch.history) == 5


def test_buckets_begin_with_the_last_layer():
    units = [Linear(draw(2, 3), draw(3)), Relu(), Linear(draw(3, 4)), Linear(draw(4, 5), draw(5))]
    built = buckets(units, 8 * 30)
    shapes = [[parameter.shape for parameter in bucket.members] for bucket in built]
    assert shapes == [[(5,), (4, 5)], [(3, 4), (3,), (2, 3)]]
    assert [bucket.whole_after for bucket in built] == [3, 0]
    assert all(parameter.grad.base is bucket.gradients for bucket in built for parameter in bucket.members)
    assert len(buckets(units, 1)) == 5 and len(buckets(units, 1 << 20)) == 1


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 40])
def test_flat_shares_are_equal_and_hold_everything(shares):
    unit = Sequential(Linear(draw(3, 5), draw(5)), LayerNorm(5))
    values = [parameter.value.copy() for parameter in unit.parameters()]
    flat = Flat(shares, shares - 1, unit)
    array = np.zeros(flat.size)
    flat.fill(array)
    assert flat.size == shares * flat.share >= 30 > flat.size - shares and flat.mine.stop == flat.size
    flat.drop_values()
    flat.values_in(array)
    assert all(np.array_equal(parameter.value, value) for parameter, value in zip(unit.parameters(), values))
    assert all(parameter.value.base is array for parameter in unit.parameters())


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_refused(loss):
    with pytest.raises(mpicoll.errors.TrainingError, match=r"the loss of step 3 is (nan|inf), and the parameters"):
        finite(loss, 3)


def test_a_parameter_owns_its_memory():
    whole = draw(4, 6)
    assert Parameter(whole[:, 2:4]).value.flags.owndata


def test_theory():
    n, p = 1000.0, 4
    assert theory.data_parallel(n, p, 2) == (1500.0, n, n, 2000.0)
    assert [theory.zero(n, p, 2, stage, 100.0).sent for stage in (1, 2, 3)] == [1500.0, 1500.0, 2250.0]
    assert theory.zero(n, p, 2, 3, 100.0)[1:] == (450.0, 450.0, 500.0)
    assert theory.parameter_server(n, p, 1, 1).sent == 3000.0 and theory.parameter_server(n, p, 1, 4).sent == 1500.0
    assert theory.pipeline(10.0, 1) == 0 and theory.pipeline(10.0, 2) == 10 and theory.pipeline(10.0, 3) == 20


@pytest.mark.parametrize("p", range(1, 17))
def test_grids_multiply_to_the_ranks(p):
    assert int(np.prod(cube(p))) == p and list(cube(p)) == sorted(cube(p), reverse=True)


# -- the command


def run(*words):
    return CliRunner().invoke(train, [*words])


def test_the_command(tmp_path):
    path, pictured = tmp_path / "t.jsonl", tmp_path / "svg"
    done = run("zero3,experts", "--steps", "2", "--width", "32", "--json", str(path), "--svg", str(pictured))
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["pattern"] for row in rows] == ["zero3", "experts"]
    assert all(row["difference"] == 0 and row["ranks"] == 1 and row["sent"] == 0 for row in rows)
    assert "against one rank" in done.output
    assert {file.name for file in pictured.iterdir()} == {
        f"{name}-{what}.svg" for name in ("zero3", "experts") for what in ("memory", "time")
    }


def test_patterns_are_listed():
    done = run("--list")
    assert done.exit_code == 0 and [line.split()[0] for line in done.output.splitlines()] == list(PATTERNS)


def test_a_loss_that_differs_fails(monkeypatch):
    monkeypatch.setitem(train.callback.__globals__["TOLERANCES"], "float64", -1.0)
    done = run("data_parallel", "--steps", "1", "--width", "8")
    assert done.exit_code == 1 and "FAILED: data_parallel: the losses differ" in done.output


@pytest.mark.parametrize(("words", "message"), [
    (["zero4"], "no training pattern is called 'zero4'"),
    (["all", "--steps", "0"], "--steps is 0"),
    (["all", "--dtype", "int8"], "'int8' is not one of"),
    (["all", "--time"], "--time takes one pattern, and"),
    (["zero3", "--time", "--svg", "x"], "--svg goes without --time"),
    (["zero3", "--time", "--explore", "x"], "--explore goes without --time"),
    (["zero3", "--explore", "no/x.html"], "--explore is no/x.html; its directory does not exist"),
])
def test_words_that_make_no_sense(words, message):
    done = run(*words)
    assert done.exit_code == 2 and message in done.output and "Traceback" not in done.output


def test_scikit_learn_missing_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(click.UsageError, match=r"pip install 'mpicoll\[train\]'"):
        data.load()


def test_text_is_the_same_for_every_rank():
    text = data.text()
    x, labels = text.batch(3, 4, 20)
    assert x.shape == labels.shape == (4, 20) and (x[:, 1:] == labels[:, :-1]).all()
    assert (text.batch(3, 4, 20)[0] == x).all() and (text.batch(4, 4, 20)[0] != x).any()
    assert len(text.characters) == text.tokens.max() + 1


def test_pictures_show_what_is_waited_for():
    events = [Event(0.0, 0.001, 0.003, "Iallreduce"), Event(0.004, 0.004, 0.005, "Bcast")]
    (rows,) = pictures.timeline([events]).to_dict()["datasets"].values()
    assert [(row["what"], row["from"], row["to"]) for row in rows] == [
        ("in flight", 0.0, 1.0), ("waited for", 1.0, 3.0), ("waited for", 4.0, 5.0),
    ]  # fmt: skip


def test_excerpts_on_the_page_are_the_code():
    """Find the excerpts of docs/TRAINING.md in the code, line by line; its programs run in tests/mpi."""
    page = (ROOT / "docs" / "TRAINING.md").read_text()
    code = "".join(file.read_text() for file in (ROOT / "mpicoll" / "training").glob("*.py"))
    known = {line.partition("#")[0].strip() for line in code.splitlines()}
    excerpts = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "for number" in block]
    assert len(excerpts) == 2
    for line in "".join(excerpts).splitlines():
        assert line.partition("#")[0].strip() in known, line
