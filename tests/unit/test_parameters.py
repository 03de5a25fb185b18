"""The kinds of parameters, their ranges, and the grids algorithms are proved on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.mutants import NOTHING, documented

from mpicoll.errors import ParameterError, PreconditionError, UnknownAlgorithm
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.prove import prove, schedules
from mpicoll.schedules import nested, parameters
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.grids import Grid, every_root, over
from mpicoll.schedules.grouping import dealt, uneven
from mpicoll.schedules.nested import Of
from mpicoll.schedules.parameters import AtMost, Fanout, Grouping, Groups, Parameter, Radix, Share, Whole
from mpicoll.schedules.registry import Algorithm, Chosen, Requirement, algorithm, every, find, list_algorithms
from mpicoll.schedules.schedule import Schedule, schedule


def resolved(annotation, value, p=6, nodes=None):
    """Return what an algorithm gets for a parameter of that kind."""
    (kind,) = annotation.__metadata__
    return Parameter(None, kind).resolve("bcast toy", "x", value, p, nodes)


def refused(annotation, value, p=6, nodes=None):
    with pytest.raises(ParameterError) as error:
        resolved(annotation, value, p, nodes)
    assert isinstance(error.value, ValueError)
    assert str(error.value).startswith(f"bcast toy: x is {value!r}; ")
    return str(error.value).partition("; ")[2]


# -- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"), [(Radix, 2), (Radix, 1000), (Fanout, 1), (Fanout, 1000), (Share, 1), (Share, 6)]
)
def test_a_number_in_range(kind, value):
    assert resolved(kind, value) == value


@pytest.mark.parametrize(
    ("kind", "value", "p", "range_"),
    [
        (Radix, 1, 6, "of at least 2"),
        (Radix, 0, 6, "of at least 2"),
        (Radix, -2, 6, "of at least 2"),
        (Fanout, 0, 6, "of at least 1"),
        (Share, 0, 6, "from 1 to p = 6"),
        (Share, 7, 6, "from 1 to p = 6"),
        (Share, 6, 5, "from 1 to p = 5"),
    ],
)
def test_a_number_out_of_range(kind, value, p, range_):
    assert refused(kind, value, p) == f"it must be a whole number {range_}"


@pytest.mark.parametrize("value", [True, 2.0, 2.5, "2", None, (2,), float("nan"), "two"])
@pytest.mark.parametrize("kind", [Radix, Fanout, Share])
def test_no_number_at_all(kind, value):
    assert refused(kind, value).startswith("it must be a whole number ")


@pytest.mark.parametrize(("value", "p", "number"), [("all", 6, 6), ("all", 1, 1), (1, 6, 1), (1000, 6, 1000)])
def test_messages_at_once(value, p, number):
    assert resolved(AtMost, value, p) == number


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "ALL", "2", None, (1,)])
def test_no_messages_at_once(value):
    assert refused(AtMost, value) == "it must be all, or a whole number of at least 1"


# -- grids of ranks -----------------------------------------------------------------------------------------

DIMS = next(iter(parameters.Grid.__metadata__))


@pytest.mark.parametrize(
    ("value", "p", "dims"),
    [
        ((4, 2), 8, (4, 2)),
        ((2, 1, 3, 1), 6, (2, 3)),
        ((1, 1), 1, (1,)),
        (1, 12, (12,)),
        (2, 12, (4, 3)),
        (3, 12, (3, 2, 2)),
        (3, 36, (4, 3, 3)),
        (2, 7, (7,)),
        (3, 1, (1,)),
    ],
)
def test_dimensions(value, p, dims):
    assert DIMS.resolve(value, p, None) == dims


@pytest.mark.parametrize("value", [0, -2, 2.0, True, "4x2", (), (4, 0), (4, 2.0), (True, 6), [3, 2], None])
def test_no_dimensions(value):
    assert refused(parameters.Grid, value) == f"it must be {DIMS.range}"


@pytest.mark.parametrize(("p", "spec"), [(6, "dims=(2, 2)"), (7, "dims=(3, 2)"), (6, "form='swing'")])
def test_a_torus_has_all_ranks(p, spec):
    words = "needs dims that multiply to p, all powers of two with form=swing, and p is"
    with pytest.raises(PreconditionError, match=rf"^allreduce torus {words} {p}, {spec.split('=')[0]} is "):
        schedule("allreduce", f"torus({spec})", p)


# -- groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "groups"),
    [
        (1, ((0,), (1,), (2,), (3,), (4,), (5,))),
        (2, ((0, 1), (2, 3), (4, 5))),
        (4, ((0, 1, 2, 3), (4, 5))),
        (6, ((0, 1, 2, 3, 4, 5),)),
        (100, ((0, 1, 2, 3, 4, 5),)),
        ("nodes", ((0, 1, 2, 3), (4, 5))),  # none are known: as if four ranks shared one
        (((0, 1, 2), (3, 4, 5)), ((0, 1, 2), (3, 4, 5))),
        (((5, 3, 4), (2, 0), (1,)), ((0, 2), (1,), (3, 4, 5))),
        ([[0, 1], [2, 3], [], [5, 4]], ((0, 1), (2, 3), (4, 5))),
    ],
)
def test_groups(value, groups):
    assert resolved(Grouping, value) == groups


def test_nodes_are_those_of_the_communicator_where_known():
    nodes = ((0, 3), (1, 4, 5), (2,))
    assert resolved(Grouping, "nodes", nodes=nodes) == nodes
    assert resolved(Grouping, 2, nodes=nodes) == ((0, 1), (2, 3), (4, 5))
    assert resolved(Grouping, ((0, 1, 2, 3, 4, 5),), nodes=nodes) == ((0, 1, 2, 3, 4, 5),)
    scheduled = schedule("allreduce", "hierarchical", 6, nodes=nodes)
    assert scheduled.resolved["groups"] == nodes
    assert schedule("allreduce", "hierarchical(groups=3)", 6, nodes=nodes).resolved["groups"] == ((0, 1, 2), (3, 4, 5))
    verify(scheduled)


def test_operand_order_depends_on_the_nodes():
    entry = find("allreduce", "hierarchical")
    one_by_one = {"middle": "recursive_doubling"}
    assert entry.keeps_order(6, ((0, 1), (2, 3, 4, 5)), **one_by_one)
    assert not entry.keeps_order(6, ((0, 2), (1, 3, 4, 5)), **one_by_one)
    assert not entry.keeps_order(6, ((0, 1), (2, 3, 4, 5)))  # a ring among the nodes
    verify(Schedule(entry, 6, commutative=False, nodes=((0, 1), (2, 3, 4, 5)), **one_by_one))
    with pytest.raises(PreconditionError, match="does not keep operand order"):
        Schedule(entry, 6, commutative=False, nodes=((0, 2), (1, 3, 4, 5)), **one_by_one)


IN_ONE = "each of the ranks 0..5 must be in one group, and it "
RANGE = "it must be nodes, the ranks per group (at least 1), or groups that hold each rank 0..p-1 once"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, RANGE),
        (-3, RANGE),
        (((0, 1), (2, 3)), IN_ONE + "leaves out 4-5"),
        ((), IN_ONE + "leaves out 0-5"),
        (((0, 1, 2), (2, 3), (4, 5, 0)), IN_ONE + "holds more than once 0, 2"),
        (((0, 1, 2, 2), (3, 4, 5)), IN_ONE + "holds more than once 2"),
        (((0, 1, 2), (3, 4, 5, 6)), IN_ONE + "names 6"),
        (((0, 1, 2, -1), (3, 4, 5)), IN_ONE + "names -1"),
        (((False, 1, 2), (3, 4, 5)), IN_ONE + "names False"),
        (((0, 1, 2.0), (3, 4, 5)), IN_ONE + "names 2.0"),
        ((("a", "b"), ("c",)), RANGE),
        ("node", RANGE),
        (2.5, RANGE),
        (None, RANGE),
        (True, RANGE),
        ((0, 1, 2, 3, 4, 5), RANGE),
        (((0, 1, 2), 3, 4, 5), RANGE),
        (((0, "a"), (1, 2, 3, 4, 5)), RANGE),
        (((None, None), (1, 2, 3, 4, 5)), RANGE),
        ((((0,), (1,)), (2, 3, 4, 5)), RANGE),
        ({0: 1}, RANGE),
    ],
    ids=str,
)
def test_groups_that_are_none(value, message):
    assert refused(Grouping, value) == message


@pytest.mark.parametrize("by", range(6))
def test_groups_turn_with_the_root(by):
    """The root's new name is 0, and who was together still is."""
    kind, groups = Groups(), ((0, 3), (1, 4, 5), (2,))
    turned = kind.turned(groups, 6, by)
    assert {frozenset((r - by) % 6 for r in group) for group in groups} == set(map(frozenset, turned))
    assert turned == kind.resolve(turned, 6, None)  # in the order it would have been given
    assert 0 in turned[0] and next(g for g in groups if by in g) == tuple(sorted((r + by) % 6 for r in turned[0]))
    assert kind.turned(turned, 6, -by % 6) == groups


# -- other algorithms ---------------------------------------------------------------------------------------


def test_another_algorithm():
    chosen = resolved(nested.Reducing, "chain")
    assert chosen == Chosen(find("reduce", "chain"))
    inner = resolved(nested.Allreducing, "reduce_bcast(reduce=chain)")
    assert inner == Chosen(find("allreduce", "reduce_bcast"), (("reduce", "chain"),))
    assert inner.blocks(range(5)) == 1 and inner.ordered(range(5))


@pytest.mark.parametrize("value", [3, None, ("chain",), print, b"chain"])
def test_no_name_of_an_algorithm(value):
    assert refused(nested.Reducing, value) == "it must be an algorithm of reduce"


def test_an_algorithm_that_cuts_shares_is_no_part_of_another():
    words = refused(nested.Allgathering, "circulant_segments(segments=2)")
    assert words == "it must be an algorithm of allgather whose blocks are whole shares of ranks"
    assert "circulant_segments" not in every("allgather")(4)


def test_an_algorithm_that_does_not_serve_two_ranks_may_be_part_of_another(registry):
    @algorithm("allgather", name="by_threes", requires=Requirement("p by 3", lambda p: p % 3 == 0))
    @documented
    def by_threes(p: int, rank: int):
        return find("allgather", "ring").make(p, {})(rank)

    assert "by_threes" in every("allgather")(3)
    assert isinstance(resolved(nested.Allgathering, "by_threes"), Chosen)


def test_an_algorithm_that_is_not_there():
    """The parameter is named, and what is near."""
    near = refused(nested.Gathering, "lineer")
    assert near.startswith("no gather algorithm is called 'lineer'; did you mean 'linear'")
    with pytest.raises(UnknownAlgorithm):
        Of("gather").resolve("lineer", 4, None)
    with pytest.raises(ParameterError, match=r"^allreduce reduce_bcast has no parameter k; it has: reduce, bcast$"):
        resolved(nested.Allreducing, "reduce_bcast(k=1)")


def test_parameters_of_an_inner_algorithm_are_checked_at_use():
    with pytest.raises(ParameterError, match=r"^allreduce hierarchical: groups is 0; it must be nodes"):
        schedule("allreduce", "hierarchical(middle=hierarchical(groups=0))", 8)
    with pytest.raises(ParameterError, match=r"each of the ranks 0\.\.1 must be in one group, and it names 2"):
        schedule("allreduce", "hierarchical(groups=4, middle=hierarchical(groups=((0, 1, 2),)))", 8)
    verify(schedule("allreduce", "hierarchical(groups=4, middle=hierarchical(groups=((0,), (1,))))", 8))


# -- grids --------------------------------------------------------------------------------------------------


def test_rows_are_all_combinations():
    grid = over(k=(2, 3), groups=(4, "nodes"))
    assert grid == Grid({"k": (2, 3), "groups": (4, "nodes")})
    assert list(grid.rows(5)) == [
        {"k": 2, "groups": 4},
        {"k": 2, "groups": "nodes"},
        {"k": 3, "groups": 4},
        {"k": 3, "groups": "nodes"},
    ]
    assert list(over().rows(5)) == [{}]
    assert list(over(k=()).rows(5)) == []


def test_a_paired_grid_has_every_value_and_other_pairs_at_other_p():
    grid = over(range(1, 9), paired=True, inner=("a", "b", "c"), middle=("x", "y", "z"), k=(2, 3))
    pairs = {p: {(row["inner"], row["middle"]) for row in grid.rows(p)} for p in range(1, 9)}
    assert all({inner for inner, _ in some} == {*"abc"} and {y for _, y in some} == {*"xyz"} for some in pairs.values())
    assert len(set().union(*pairs.values())) == 9
    assert {row["k"] for row in grid.rows(5)} == {2, 3}
    assert not list(grid.rows(9)) and not list(over(paired=True, k=()).rows(9))


def test_rows_of_other_ranks_are_none():
    grid = over(range(2, 5), k=(2,))
    assert [len(list(grid.rows(p))) for p in range(1, 7)] == [0, 1, 1, 1, 0, 0]
    assert [len(list(over(k=(2,)).rows(p))) for p in (1, 64, 65)] == [1, 1, 0]
    assert [len(list(over((6, 11), k=(2,)).rows(p))) for p in (6, 7, 11)] == [1, 0, 1]


def test_values_may_be_functions_of_p():
    grid = over(servers=lambda p: range(1, p), groups=(uneven, dealt, 2), k=(lambda p: p // 2,))
    assert [row["servers"] for row in grid.rows(3)] == [1, 1, 1, 2, 2, 2]
    assert [row["groups"] for row in grid.rows(2)] == [((0,), (1,)), ((0,), (1,)), 2]
    assert {row["k"] for row in grid.rows(7)} == {3}
    names = [row["reduce"] for row in over(reduce=every("reduce", "chain")).rows(4)]
    assert "binomial" in names and "chain" not in names and len(names) == len(list_algorithms()["reduce"]) - 1


def test_every_names_what_is_registered_later_too(registry):
    names = every("barrier")
    before = names(4)
    algorithm("barrier", name="later")(find("barrier", "dissemination").body)
    assert names(4) == [*before, "later"]
    assert every("barrier", *before)(4) == ["later"]


def test_choices_are_the_defaults_then_the_grid():
    def body(p, rank, *, k=2): ...

    parameter = {"k": Parameter(2, Whole(2))}
    grid = (over(range(3, 5), k=(3, 4)), over((4,), every_root, k=(5,)))
    entry = Algorithm(COLLECTIVES["bcast"], "toy", body, NOTHING, grid=grid, parameters=parameter)
    assert [(parameters, list(roots)) for parameters, roots in entry.choices(2)] == [({}, [0, 1])]
    assert [(parameters, list(roots)) for parameters, roots in entry.choices(4)] == [
        ({}, [0, 1, 2, 3]),
        ({"k": 3}, [0, 3]),
        ({"k": 4}, [0, 3]),
        ({"k": 5}, [0, 1, 2, 3]),
    ]
    assert (entry.defaults, entry.resolve(3), entry.resolve(3, k=9)) == ({"k": 2}, {"k": 2}, {"k": 9})


# -- what an algorithm needs of p ---------------------------------------------------------------------------


@documented
def pairs(p, rank, *, k: Radix = 2):
    return find("bcast", "linear")(p, rank)


EVEN = Requirement("an even number of ranks, more than k", lambda p, k: p % 2 == 0 and p >= k)


def test_an_algorithm_may_need_a_number_of_ranks(registry):
    entry = algorithm("bcast", requires=EVEN, grid=[over(k=(2, 5))])(pairs)
    assert [entry.serves(p) for p in (1, 2, 3, 4)] == [False, True, False, True]
    assert issubclass(PreconditionError, ValueError)
    for p, arguments in ((3, {}), (1, {}), (4, {"k": 5})):
        values = "".join(f", {name} is {value}" for name, value in arguments.items())
        message = f"^bcast pairs needs an even number of ranks, more than k, and p is {p}{values}$"
        for use in (entry.resolve, lambda p, **chosen: Schedule(entry, p, **chosen), lambda p, **k: entry(p, 0, **k)):
            with pytest.raises(PreconditionError, match=message):
                use(p, **arguments)
    with pytest.raises(PreconditionError):
        schedule("bcast", "pairs(k=5)", 4)
    verify(schedule("bcast", "pairs(k=5)", 6))


def test_only_where_it_serves_it_is_proved(registry):
    """Its defaults where p will do; of its grid what will do. What is asked for must do, or there is no proof."""
    entry = algorithm("bcast", requires=EVEN, grid=[over(k=(2, 5))])(pairs)
    assert [prove(entry, p) for p in range(1, 7)] == [0, 2, 0, 4, 0, 6 + 2]
    assert [str(s.parameters) for s in schedules(entry, 4)] == ["{}"] * 4
    assert prove(entry, 6, {"k": 5}) == 6
    with pytest.raises(PreconditionError):
        prove(entry, 4, {"k": 5})


def test_a_part_that_does_not_serve_is_refused(registry):
    """In a composition the parts have ranks of their own to serve."""
    algorithm("bcast", requires=EVEN)(pairs)
    verify(schedule("allreduce", "reduce_bcast(bcast=pairs)", 4))
    with pytest.raises(PreconditionError, match=r"^bcast pairs needs an even number of ranks, .* and p is 3$"):
        schedule("allreduce", "reduce_bcast(bcast=pairs)", 3)
    entry = replace(find("allreduce", "reduce_bcast"), grid=(over(bcast=("pairs", "chain")),))
    assert [prove(entry, p) for p in (3, 4)] == [1 + 1, 1 + 2]


def test_parameters_out_of_range_are_no_question_of_p(registry):
    entry = algorithm("bcast", requires=EVEN)(pairs)
    with pytest.raises(ParameterError, match=r"^bcast pairs: k is 1; it must be a whole number of at least 2$"):
        entry.resolve(3, k=1)
    wrong = algorithm("bcast", name="wrong", grid=[over(k=(1,))])(pairs)
    with pytest.raises(ParameterError, match="k is 1"):
        prove(wrong, 4)
