"""The registry, names with parameters, and what a schedule refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mpicoll
from mpicoll import verify
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import PreconditionError, UnknownAlgorithm
from mpicoll.ir import Loc, Recv, RecvReduce, Reduce, Send, Strands, strands
from mpicoll.schedule import (
    _REGISTRY,
    Schedule,
    algorithm,
    find,
    ordered_names,
    parse_spec,
    registered,
    schedule,
)

EVERY = [pytest.param(a, id=f"{a.collective.name}-{a.name}") for a in registered()]


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = {collective: dict(entries) for collective, entries in _REGISTRY.items()}
    yield
    for collective, entries in before.items():
        _REGISTRY[collective].clear()
        _REGISTRY[collective].update(entries)
    parse_spec.cache_clear()


def star(p, rank, *, width=1):
    """The root sends to all.

    Steps: p > 1
    Bytes per rank: n * (p - 1)
    Scratch: 0
    Cost: (p - 1) (α + n β)
    Source: the definition
    """
    if rank == 0 and p > 1:
        yield [Send(peer, [0]) for peer in range(1, p)]
    elif rank:
        yield Recv(0, [0])


# -- one edit registers -------------------------------------------------------------------------------------


def test_registering_adds_it_everywhere(registry):
    entry = algorithm("bcast")(star)
    assert mpicoll.algorithms()["bcast"][-1] == "star"
    assert mpicoll.schedule("bcast", "star", p=5).algorithm is entry
    assert entry in verify.selected() and entry in verify.selected("bcast")
    assert verify.selected("bcast", "star") == [entry]
    assert entry not in verify.selected("reduce")
    assert verify.prove(entry, 5) == 5


def test_what_a_test_registered_is_gone():
    assert "star" not in mpicoll.algorithms()["bcast"]


def test_registering_twice(registry):
    algorithm("bcast")(star)
    with pytest.raises(ValueError, match="bcast star is registered twice"):
        algorithm("bcast")(star)
    assert algorithm("bcast", name="comet")(star).name == "comet"


def test_a_docstring_is_part_of_it(registry):
    with pytest.raises(ValueError, match="the docstring of bcast bare lacks Steps, Bytes per rank, Scratch, Cost, So"):
        algorithm("bcast", name="bare")(lambda p, rank: [])
    assert "bare" not in mpicoll.algorithms()["bcast"]


def test_unknown_collective_cannot_be_registered_for():
    with pytest.raises(KeyError):
        algorithm("broadcast")(star)


def test_parameters_are_the_keywords(registry):
    assert algorithm("bcast")(star).parameters == {"width": 1}


@pytest.mark.parametrize(("blocks", "expected"), [(3, 3), (lambda p: 2 * p, 10)])
def test_number_of_blocks(registry, blocks, expected):
    entry = algorithm("allreduce", blocks=blocks)(star)
    assert Schedule(entry, 5).blocks == tuple(range(expected))


def test_number_of_blocks_may_depend_on_a_parameter(registry):
    entry = algorithm("allreduce", blocks=lambda p, width=1: p * width)(star)
    assert len(Schedule(entry, 5).blocks) == 5
    assert len(Schedule(entry, 5, width=3).blocks) == 15


def test_every_collective_has_an_algorithm():
    assert set(mpicoll.algorithms()) == set(COLLECTIVES)
    assert all(mpicoll.algorithms().values())


# -- finding ------------------------------------------------------------------------------------------------


def test_near_names():
    with pytest.raises(UnknownAlgorithm, match="no allreduce algorithm is called 'rign'; did you mean 'ring'"):
        schedule("allreduce", "rign", p=3)
    with pytest.raises(UnknownAlgorithm, match="no collective is called 'alreduce'; did you mean 'allreduce'"):
        schedule("alreduce", "ring", p=3)


def test_far_names_list_all():
    with pytest.raises(UnknownAlgorithm, match="'zzz'; there is 'binomial', 'chain'"):
        find("bcast", "zzz")


@pytest.mark.parametrize("entry", EVERY)
def test_every_algorithm_is_found_by_its_name(entry):
    name = entry.collective.name
    assert find(name, entry.name) is entry
    assert parse_spec(name, entry.name) == (entry, ())
    assert verify.selected(name, entry.name) == [entry]
    assert schedule(name, entry.name, p=3).algorithm is entry


def test_selected_refuses_what_is_unknown():
    with pytest.raises(UnknownAlgorithm, match="no collective is called 'nothing'"):
        verify.selected("nothing")
    with pytest.raises(UnknownAlgorithm):
        verify.selected("allreduce", "nothing")


# -- names with parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("reduce_bcast", {}),
        ("reduce_bcast()", {}),
        ("reduce_bcast(reduce=chain)", {"reduce": "chain"}),
        ("reduce_bcast(reduce='chain')", {"reduce": "chain"}),
        (" reduce_bcast ( bcast = chain, reduce = chain ) ", {"reduce": "chain", "bcast": "chain"}),
        ("reduce_bcast(reduce=3)", {"reduce": 3}),
    ],
)
def test_parse_spec(spec, expected):
    entry, given = parse_spec("allreduce", spec)
    assert entry is find("allreduce", "reduce_bcast")
    assert dict(given) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "reduce_bcast(chain)",
        "reduce_bcast(reduce=chain",
        "reduce_bcast(reduce=)",
        "reduce_bcast(reduce=f())",
        "reduce_bcast(reduce=chain) x",
        "reduce_bcast(reduce=a.b)",
        "reduce_bcast(1, reduce=chain)",
        "ring(",
        "reduce_bcast(reduce=chain)(bcast=chain)",
        "reduce_bcast(reduce=chain, reduce=binomial)",
    ],
)
def test_junk_in_a_spec(spec):
    with pytest.raises(ValueError, match=r"cannot read .*: write it as name\(key=value, …\)"):
        parse_spec("allreduce", spec)


def test_unknown_parameter():
    with pytest.raises(ValueError, match="allreduce reduce_bcast has no parameter root; it has: reduce, bcast"):
        parse_spec("allreduce", "reduce_bcast(root=1)")
    with pytest.raises(ValueError, match="allreduce ring has no parameter a, b; it has: none"):
        parse_spec("allreduce", "ring(b=1, a=2)")


@pytest.mark.parametrize("spec", ["", "()", "(reduce=chain)"])
def test_a_spec_has_a_name(spec):
    with pytest.raises(UnknownAlgorithm):
        parse_spec("allreduce", spec)


def test_a_parameter_names_another_algorithm():
    made = schedule("allreduce", "reduce_bcast(reduce=chain, bcast=chain)", p=4)
    assert made.title == "allreduce reduce_bcast(bcast=chain, reduce=chain)"
    assert verify.verify(made).steps == 6
    with pytest.raises(UnknownAlgorithm, match="no reduce algorithm is called 'chian'; did you mean 'chain'"):
        schedule("allreduce", "reduce_bcast(reduce=chian)", p=4).verify()


def test_keywords_go_before_the_spec():
    made = schedule("allreduce", "reduce_bcast(reduce=chain)", p=4, reduce="binomial")
    assert made.parameters == {"reduce": "binomial"}


# -- preconditions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_only_ordered_algorithms_serve_an_operator_that_does_not_commute(entry):
    able = ordered_names(entry.collective.name)
    if not entry.collective.reduces or entry.ordered:
        assert not Schedule(entry, 3, commutative=False).commutative
        return
    with pytest.raises(PreconditionError, match=f"choose {' or '.join(able) or 'native'}$") as error:
        Schedule(entry, 3, commutative=False)
    assert f"{entry.collective.name} {entry.name} does not keep operand order" in str(error.value)


def test_a_piece_that_loses_the_order_is_refused_too(registry):
    """reduce_bcast keeps operand order where its reduce does."""

    @algorithm("reduce")
    def loose(p, rank):
        """The others in the wrong order.

        Steps: p > 1
        Bytes per rank: n * (p - 1)
        Scratch: n * (p - 1)
        Cost: (p - 1) (α + n β + n γ)
        Source: none
        """
        if rank:
            yield Send(0, (0,))
        elif p > 1:
            yield [RecvReduce(peer, (0,), "left") for peer in range(1, p)]

    with pytest.raises(PreconditionError, match="reduce_bcast does not keep operand order"):
        schedule("allreduce", "reduce_bcast(reduce=loose)", 4, commutative=False)


@pytest.mark.parametrize("p", [0, -1])
def test_at_least_one_rank(p):
    with pytest.raises(ValueError, match=f"p is {p}"):
        schedule("allreduce", "ring", p)


@pytest.mark.parametrize("root", [-1, 4])
def test_root_is_a_rank(root):
    with pytest.raises(ValueError, match=rf"root is {root}; it must be in 0\.\.3"):
        schedule("bcast", "binomial", 4, root)


# -- the one form -------------------------------------------------------------------------------------------


def test_strands_are_tuples_all_the_way_down():
    send, fold, local = Send(1, [0, 1]), RecvReduce(1, range(2)), Reduce(Loc("a", 0), Loc("value", 0))
    assert strands(iter([send, [fold, local]])) == Strands((((Send(1, (0, 1)),), (RecvReduce(1, (0, 1)), local)),))


def test_strands_stay_what_they_are():
    made = Strands((((Send(1, ()),),), ()))
    assert strands(made) is made
    assert strands([]) == Strands(((),))


@pytest.mark.parametrize("entry", EVERY)
def test_programs_are_hashable_and_the_same_every_time(entry):
    for rank in range(5):
        assert hash(entry(5, rank)) == hash(entry(5, rank))


@pytest.mark.parametrize("entry", EVERY)
def test_one_rank_has_no_one_to_talk_to(entry):
    assert not any(step for strand in entry(1, 0) for step in strand)


@pytest.mark.parametrize("entry", EVERY)
def test_title_and_text(entry):
    made = Schedule(entry, 3)
    assert made.title == f"{entry.collective.name} {entry.name}"
    assert repr(made) == f"<Schedule {made.title} p=3>"
    if entry.collective.rooted:
        assert Schedule(entry, 3, 2).title == f"{made.title} root 2"


def test_starts_and_ends():
    gather = schedule("gather", "linear", 3, root=1)
    assert [gather.starts(r) for r in range(3)] == [[0], [1], [2]]
    assert [gather.ends(r) for r in range(3)] == [[], [0, 1, 2], []]
    pairs = schedule("alltoall", "pairwise", 2)
    assert pairs.starts(1) == [(1, 0), (1, 1)]
    assert pairs.ends(1) == [(0, 1), (1, 1)]
    assert schedule("barrier", "dissemination", 3).blocks == ()
