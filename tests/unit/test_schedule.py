"""The registry, names with parameters, and what a schedule refuses."""

from __future__ import annotations

import pytest
from unit.every import EVERY, served
from unit.mutants import documented

import mpicoll
from mpicoll.errors import ParameterError, PreconditionError, UnknownAlgorithm
from mpicoll.proofs import prove
from mpicoll.proofs.check_schedule import verify
from mpicoll.schedules.collectives import COLLECTIVES, PLAIN, base_collective
from mpicoll.schedules.ir import Loc, RecvReduce, Reduce, Send, Strands, strands
from mpicoll.schedules.parameters import Fanout, Parameter, Whole
from mpicoll.schedules.registry import Requirement, algorithm, find, ordered_names, parse_spec, registered
from mpicoll.schedules.schedule import Schedule, schedule


@documented
def star(p, rank, *, width: Fanout = 1):
    return find("bcast", "linear")(p, rank)


# -- one edit registers -------------------------------------------------------------------------------------


def test_registering_adds_it_everywhere(registry):
    entry = algorithm("bcast")(star)
    assert mpicoll.list_algorithms()["bcast"][-1] == "star"
    assert mpicoll.schedule("bcast", "star", p=5).algorithm is entry
    assert entry in prove.selected() and entry in prove.selected("bcast")
    assert prove.selected("bcast", "star") == [entry]
    assert entry not in prove.selected("reduce")
    assert prove.prove(entry, 5) == 5


def test_parameters_are_the_keywords(registry):
    entry = algorithm("bcast", name="comet")(star)
    assert (entry.name, entry.parameters) == ("comet", {"width": Parameter(1, Whole(1))})
    assert entry.defaults == {"width": 1}


@documented
def kindless(p, rank, *, width: int = 1): ...


@documented
def bare(p, rank, *, width=1): ...


@pytest.mark.parametrize(
    ("collective", "body", "declared", "error", "message"),
    [
        ("bcast", star, {"name": "linear"}, ValueError, "^bcast linear is registered twice$"),
        ("bcast", lambda p, rank: [], {"name": "mute"}, ValueError, "docstring of bcast mute lacks Steps, Bytes"),
        ("broadcast", star, {}, UnknownAlgorithm, "did you mean 'bcast'"),
        ("bcast", kindless, {}, ValueError, "^the parameter width of bcast kindless has no kind; annotate it"),
        ("bcast", bare, {}, ValueError, "^the parameter width of bcast bare has no kind; annotate it"),
        ("gather", star, {"blocks": 3}, ValueError, "^gather star declares blocks, and gather has those"),
    ],
)
def test_refused_algorithms_are_not_registered(registry, collective, body, declared, error, message):
    before = mpicoll.list_algorithms()
    with pytest.raises(error, match=message):
        algorithm(collective, **declared)(body)
    assert mpicoll.list_algorithms() == before


@pytest.mark.parametrize(
    ("blocks", "parameters", "expected"),
    [
        (3, {}, 3),
        (lambda p, width: 2 * p, {}, 10),
        (lambda p, width: p * width, {}, 5),
        (lambda p, width: p * width, {"width": 3}, 15),
    ],
)
def test_number_of_blocks(registry, blocks, parameters, expected):
    entry = algorithm("allreduce", blocks=blocks)(star)
    assert tuple(Schedule(entry, 5, **parameters).blocks) == tuple(range(expected))


def test_every_algorithm_is_listed():
    listed = mpicoll.list_algorithms()
    assert set(listed) == {*COLLECTIVES, *PLAIN} and all(listed.values())
    assert {(c, name) for c in COLLECTIVES for name in listed[c]} == {(a.collective.name, a.name) for a in registered()}


@pytest.mark.parametrize(("form", "of"), PLAIN.items())
def test_algorithms_serve_forms_with_counts(form, of):
    assert of in COLLECTIVES and form not in COLLECTIVES
    assert (base_collective(form), base_collective(of)) == (of, of)
    assert mpicoll.list_algorithms()[form] == mpicoll.list_algorithms()[of]
    for name in mpicoll.list_algorithms()[of]:
        assert find(form, name) is find(of, name)
        assert parse_spec(form, name) == (find(of, name), ())
    with pytest.raises(UnknownAlgorithm, match=f"no {form} algorithm is called 'nothing'"):
        find(form, "nothing")


# -- finding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "name", "message"),
    [
        ("allreduce", "rign", "no allreduce algorithm is called 'rign'; did you mean 'ring'"),
        ("alreduce", "ring", "no collective is called 'alreduce'; did you mean 'allreduce'"),
        ("algatherv", "ring", "did you mean 'allgatherv'"),
        ("bcast", "zzz", "'zzz'; there is 'linear', 'binomial', 'knomial', 'chain'"),
    ],
)
def test_near_names_are_said_or_all(collective, name, message):
    for look in (find, parse_spec, lambda collective, name: schedule(collective, name, p=3)):
        with pytest.raises(UnknownAlgorithm, match=message):
            look(collective, name)


def test_selected_refuses_what_is_unknown():
    with pytest.raises(UnknownAlgorithm, match="no collective is called 'nothing'"):
        prove.selected("nothing")
    with pytest.raises(UnknownAlgorithm):
        prove.selected("allreduce", "nothing")


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
        ("reduce_bcast(reduce=chain())", {"reduce": "chain()"}),
        ("reduce_bcast(reduce=hierarchical(inner=chain, k=3))", {"reduce": "hierarchical(inner=chain, k=3)"}),
        ("reduce_bcast(reduce=f(g(x)))", {"reduce": "f(g(x))"}),
        ("reduce_bcast(reduce=f(a=g, groups=((0, 1), (2,))))", {"reduce": "f(a=g, groups=((0, 1), (2,)))"}),
        ("reduce_bcast(reduce=[[0, 1], [2]], bcast=())", {"reduce": ((0, 1), (2,)), "bcast": ()}),
        ("reduce_bcast(reduce=-3, bcast=None)", {"reduce": -3, "bcast": None}),
    ],
)
def test_parse_spec(spec, expected):
    entry, parameters = parse_spec("allreduce", spec)
    assert entry is find("allreduce", "reduce_bcast")
    assert dict(parameters) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "reduce_bcast(chain)",
        "reduce_bcast(reduce=chain",
        "reduce_bcast(reduce=)",
        "reduce_bcast(reduce=f()())",
        "reduce_bcast(reduce={(0, 1), (2,)})",
        "reduce_bcast(reduce={0: 1})",
        "reduce_bcast(reduce=[{0}])",
        "reduce_bcast(reduce={[]: 0})",
        "reduce_bcast(reduce=[a, b])",
        "reduce_bcast(reduce=1 + x)",
        "reduce_bcast(**a)",
        "reduce_bcast(*a)",
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
    assert issubclass(ParameterError, ValueError)
    with pytest.raises(ParameterError, match="allreduce reduce_bcast has no parameter root; it has: reduce, bcast"):
        parse_spec("allreduce", "reduce_bcast(root=1)")
    with pytest.raises(ParameterError, match="allreduce ring has no parameter a, b; it has: none"):
        parse_spec("allreduce", "ring(b=1, a=2)")
    ring = find("allreduce", "ring")
    for use in (ring.resolve, lambda p, **words: ring(p, 0, **words), lambda p, **words: Schedule(ring, p, **words)):
        with pytest.raises(ParameterError, match="allreduce ring has no parameter k; it has: none"):
            use(4, k=1)


@pytest.mark.parametrize("spec", ["", "()", "(reduce=chain)"])
def test_a_spec_has_a_name(spec):
    with pytest.raises(UnknownAlgorithm):
        parse_spec("allreduce", spec)


def test_a_parameter_names_another_algorithm():
    chains = schedule("allreduce", "reduce_bcast(reduce=chain, bcast=chain)", p=4)
    assert chains.title == "allreduce reduce_bcast(bcast=chain, reduce=chain)"
    assert verify(chains).steps == 6


def test_a_parameter_has_parameters():
    with pytest.raises(ParameterError, match=r"^reduce binomial has no parameter k; it has: none$"):
        schedule("allreduce", "reduce_bcast(reduce=binomial(k=3))", p=4)
    with pytest.raises(ParameterError, match=r"^cannot read 'chain\(3\)': write it as name"):
        schedule("allreduce", "reduce_bcast(reduce=chain(3))", p=4)
    spec = "hierarchical(inner=chain(), middle=reduce_bcast(reduce=chain), groups=[[2, 1], [0]])"
    nested = schedule("allreduce", spec, 3)
    assert nested.resolved["groups"] == ((0,), (1, 2))
    assert nested.resolved["middle"].parameters == (("reduce", "chain"),)
    verify(nested)


def test_keywords_go_before_the_spec():
    keyed = schedule("allreduce", "reduce_bcast(reduce=chain)", p=4, reduce="binomial")
    assert keyed.parameters == {"reduce": "binomial"}


# -- preconditions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_only_ordered_algorithms_serve_an_operator_that_does_not_commute(entry):
    p = served(entry, 3)
    able = ordered_names(entry.collective.name, p)
    if not entry.collective.reduces or entry.keeps_order(p):
        assert not Schedule(entry, p, commutative=False).commutative
        return
    with pytest.raises(PreconditionError, match=f"choose {' or '.join(able) or 'native'}$") as error:
        Schedule(entry, p, commutative=False)
    assert f"{entry.collective.name} {entry.name} does not keep operand order" in str(error.value)


def test_unsuitable_algorithms_are_not_named(registry):
    """Ask for the p at hand if order depends on p, and leave out algorithms that need another p."""
    even = Requirement("an even number of ranks", lambda p, width: p % 2 == 0)
    algorithm("reduce", name="even", requires=even, ordered=lambda p, width: p < 9)(star)
    assert [name for name in ("even", "chain") for p in (7, 8, 10) if name in ordered_names("reduce", p)] == [
        "even",
        *["chain"] * 3,
    ]
    assert "even" in ordered_names("reduce")
    assert ordered_names("gatherv") == ordered_names("gather")


def test_a_piece_that_loses_the_order_is_refused_too():
    """reduce_bcast keeps operand order where its reduce does."""
    assert schedule("allreduce", "reduce_bcast(reduce=chain)", 4, commutative=False)
    with pytest.raises(PreconditionError, match="reduce_bcast does not keep operand order"):
        schedule("allreduce", "reduce_bcast(reduce=rabenseifner)", 4, commutative=False)


@pytest.mark.parametrize(
    ("p", "root", "message"),
    [
        (0, 0, "p is 0"),
        (-1, 0, "p is -1"),
        (4, -1, r"root is -1; it must be in 0\.\.3"),
        (4, 4, r"root is 4; it must be in 0\.\.3"),
    ],
)
def test_there_is_a_rank_and_the_root_is_one(p, root, message):
    with pytest.raises(ValueError, match=message):
        schedule("bcast", "binomial", p, root)


# -- the one form -------------------------------------------------------------------------------------------


def test_strands_are_tuples_all_the_way_down_and_stay_what_they_are():
    send, fold, local = Send(1, [0, 1]), RecvReduce(1, range(2)), Reduce(Loc("a", 0), Loc("value", 0))
    frozen = strands(iter([send, [fold, local]]))
    assert frozen == Strands((((Send(1, (0, 1)),), (RecvReduce(1, (0, 1)), local)),))
    assert strands(frozen) is frozen
    assert strands([]) == Strands(((),))


@pytest.mark.parametrize("entry", EVERY)
def test_programs_are_hashable_and_the_same_every_time(entry):
    p = served(entry, 5)
    for rank in range(p):
        assert hash(entry(p, rank)) == hash(entry(p, rank))


@pytest.mark.parametrize("entry", EVERY)
def test_title_and_text(entry):
    p = served(entry, 3)
    scheduled = Schedule(entry, p)
    assert scheduled.title == entry.title == f"{entry.collective.name} {entry.name}"
    assert repr(scheduled) == f"<Schedule {scheduled.title} p={p}>"
    if entry.collective.rooted:
        assert Schedule(entry, p, 2).title == f"{scheduled.title} root 2"
