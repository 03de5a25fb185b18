"""Codecs: their bytes, their bounds, what they keep and what they refuse; and how often schedules encode."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll
from mpicoll.compression import PowerSGD, parse
from mpicoll.compression.codecs import GROUPS
from mpicoll.errors import CodecError, ParameterError, VerifyError
from mpicoll.kernels import codecs as kernels
from mpicoll.kernels import reduce
from mpicoll.kernels.rules import LOW
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.encodings import Encodings
from mpicoll.proofs.prove import prove
from mpicoll.schedules.registry import find, registered

SPECS = [*LOW, "int8", "int8(group=32)", "int4", "int4(group=4)", "topk", "topk(k=3, group=64)"]
each_codec = pytest.mark.parametrize("codec", [parse(spec) for spec in SPECS], ids=SPECS)


def counts(group: int) -> list[int]:
    return [0, 1, group - 1, group, group + 1, 3 * group + group // 2 + 1]


def contents(n: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(n)
    normal = draw.standard_normal(n).astype(np.float32)
    lonely = normal * np.float32(1e-3)
    lonely[: n // 300 + 1] = 300
    return {
        "normal": normal, "lonely": lonely, "constant": np.full(n, 0.3, np.float32),
        "tiny": normal * np.float32(1e-40), "zeros": np.zeros(n, np.float32) * -1, "small": normal * np.float32(1e-3),
    }  # fmt: skip


@each_codec
def test_decoded_values_are_within_the_bound(codec):
    for n in counts(codec.group):
        for what, x in contents(n).items():
            codes = codec.encode(x)
            assert len(codes) == codec.nbytes(n)
            error = np.abs(codec.decode(codes, n).astype(np.float64) - x)
            assert (error <= codec.error_bound(x) * (1 + 1e-6)).all(), (what, n)


@each_codec
def test_the_bound_is_reached(codec):
    x = np.random.default_rng(3).standard_normal(200_000).astype(np.float32)
    bound = codec.error_bound(x)
    error = np.abs(codec.decode(codec.encode(x), len(x)).astype(np.float64) - x)
    assert 0.9 < (error[bound > 0] / bound[bound > 0]).max() <= 1 + 1e-6


@each_codec
def test_codes_of_groups_follow_each_other(codec):
    x = np.random.default_rng(4).standard_normal(5 * codec.group + 1).astype(np.float32)
    cut = 2 * codec.group
    parts = [codec.encode(x[:cut].copy()), codec.encode(x[cut:].copy())]
    assert (np.concatenate(parts) == codec.encode(x)).all()
    assert codec.share == codec.nbytes(codec.group) / (4 * codec.group)


@each_codec
def test_the_residual_is_the_unsent_part(codec):
    for n in counts(codec.group):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        rest = x.copy()
        codes = codec.encode(rest, keep=True)
        assert (rest == x - codec.decode(codes, n)).all()
        before = x.copy()
        assert (codec.encode(x) == codes).all() and (x == before).all()


@each_codec
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_raise_on_both_sides(codec, value):
    x = np.ones(3 * codec.group, np.float32)
    x[codec.group] = value
    with pytest.raises(CodecError, match="NaN, infinity"):
        codec.encode(x)
    codes = codec.encode(x, nonfinite="pass")
    with pytest.raises(CodecError, match="NaN, infinity"):
        codec.decode(codes, len(x))
    got = codec.decode(codes, len(x), nonfinite="pass")
    assert not np.isfinite(got[codec.group : 2 * codec.group]).all()
    if codec.name != "topk":
        assert np.isfinite(got[: codec.group]).all() and np.isfinite(got[2 * codec.group :]).all()


@each_codec
def test_codes_may_lie_anywhere(codec):
    if codec.name in LOW and LOW[codec.name].itemsize > 1:
        return  # elements of two bytes lie at even addresses, as plans have them
    n = codec.group + 1
    x = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    memory = np.full(codec.nbytes(n) + 5, 0xA5, np.uint8)
    params = codec.params()
    at = [array.__array_interface__["data"][0] for array in (memory, x, params)]
    reduce.call(codec.addresses[0], at[0] + 3, at[1], at[2], n)
    assert (memory[3:-2] == codec.encode(x)).all() and (memory[[0, 1, 2, -2, -1]] == 0xA5).all() and not params[0]


def test_topk_sends_the_largest_and_of_equal_ones_the_first():
    codec = parse("topk(k=3, group=8)")
    x = np.array([1, -5, 2, 2, 2, 0, -1, 2], np.float32)
    assert codec.decode(codec.encode(x), 8).tolist() == [0, -5, 2, 2, 0, 0, 0, 0]
    assert parse("topk(fraction=0.25, group=8)").decode(parse("topk(fraction=0.25, group=8)").encode(x), 8).any()


@pytest.mark.parametrize("spec", [*SPECS, "cast(bfloat16)", "topk(fraction=0.05, group=1024)"])
def test_a_codec_is_written_as_it_is_read(spec):
    assert parse(str(parse(spec))) == parse(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("int7", "there are cast, int8, int4, topk, float16"),
        ("int8(group=0)", "power of two from 1 to 4096"),
        ("int8(group=100)", "power of two"),
        ("int8(k=3)", "it has group"),
        ("topk(k=0)", "at least 1"),
        ("topk(fraction=1.5)", "above 0 and at most 1"),
        ("topk(k=3, fraction=0.1)", "not both"),
        ("cast(int8)", "it may be float16"),
        ("int8(", "cannot read"),
        ("cast(bfloat16, float16)", "there is no codec"),
    ],
)
def test_invalid_codecs_are_refused_in_words(spec, message):
    with pytest.raises(ParameterError, match=message):
        parse(spec)


def test_other_arrays_are_refused():
    for array in (np.ones(4), np.ones(4, int), np.ones((4, 4), np.float32)[:, 0]):
        with pytest.raises(CodecError, match="float32"):
            parse("int8").encode(array)
    with pytest.raises(CodecError, match="makes 8 bytes"):
        parse("int8").decode(np.zeros(7, np.uint8), 4)
    with pytest.raises(ParameterError, match="has no group"):
        parse("bfloat16").of_group(4)


def test_without_a_compiler_a_codec_says_so(monkeypatch):
    def fail(name):
        raise ImportError("no numba")

    monkeypatch.setattr(kernels, "addresses", fail)
    with pytest.raises(CodecError, match="neither loaded nor compiled"):
        parse("int8(group=16)").encode(np.ones(4, np.float32))


def test_reference_of_the_kernels_is_not_their_own_arithmetic():
    x = np.random.default_rng(6).standard_normal(GROUPS["int8"]).astype(np.float32)
    scale = np.abs(x).max() / np.float32(127)
    codes = np.rint(x / scale).astype(np.int8)
    got = parse("int8").encode(x)
    assert got[:4].view(np.float32)[0] == scale and np.abs(got[4:].view(np.int8) - codes.astype(int)).max() <= 1
    assert kernels.PROBLEMS == 0


# -- schedules ------------------------------------------------------------------------------------------------


CODED = [entry for entry in registered() if not entry.is_exact]


@pytest.mark.parametrize("entry", CODED, ids=lambda entry: entry.title)
@pytest.mark.parametrize("p", [2, 3, 8, 13])
def test_a_contribution_is_encoded_once_and_a_sum_once_more(entry, p):
    most = Encodings(mpicoll.schedule(entry.collective.name, entry.name, p)).most()
    assert most == (2 if entry.collective.name == "allreduce" else 1)


def test_own_contributions_are_encoded_once():
    encodings = Encodings(mpicoll.schedule("allreduce", "quantized", 3))
    assert encodings.of(1, 1) == encodings.of(0, 1) == ((0, 2), (1, 1), (2, 2))


def test_a_wrong_claim_is_found(monkeypatch):
    schedule = mpicoll.schedule("allreduce", "quantized", 4)
    object.__setattr__(schedule.algorithm.claims, "encoded", "1")
    try:
        with pytest.raises(VerifyError, match="Encoded"):
            verify(schedule)
    finally:
        object.__setattr__(schedule.algorithm.claims, "encoded", "2 * (p > 1)")
    verify(schedule)


@pytest.mark.parametrize("p", [2, 6, 9])
def test_nodes_send_codes_to_each_other(p):
    middle = "quantized(codec=int4)"
    assert prove(find("allreduce", "hierarchical"), p, {"groups": 3, "middle": middle}) == 1
    hierarchical = mpicoll.schedule("allreduce", f"hierarchical(groups=3, middle={middle})", p)
    assert str(hierarchical.codec) == "int4(group=64)"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("quantized(codec=int9)", "there is no codec"),
        ("quantized(group=0)", "at least 1"),
        ("quantized(codec=int8, group=3)", "power of two"),
        ("quantized(codec=bfloat16, group=64)", "has no group"),
    ],
)
def test_a_schedule_refuses_what_is_no_codec(spec, message):
    with pytest.raises(ParameterError, match=message):
        mpicoll.schedule("allreduce", spec, 4)


# -- error on many ranks, simulated ---------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2, 3, 8, 13, 64])
@pytest.mark.parametrize("spec", ["int8", "int4", "bfloat16", "float8_e4m3fn"])
def test_the_error_of_a_sum_is_within_what_its_encodings_add_up_to(spec, p):
    codec, n = parse(spec), 4096
    draw = np.random.default_rng(p)
    x = draw.standard_normal((p, n)).astype(np.float32)
    sent = [x[0], *(codec.decode(codec.encode(row), n) for row in x[1:])]
    total = np.sum(sent, axis=0, dtype=np.float32)
    result = codec.decode(codec.encode(total), n).astype(np.float64)
    bound = sum(codec.error_bound(row) for row in x[1:]) + codec.error_bound(total) + p * 2.0**-24 * np.abs(x).sum(0)
    error = np.abs(result - x.sum(0, dtype=np.float64))
    assert (error <= bound).all() and error.max() > 0.1 * bound.max() / p**0.5


# -- PowerSGD -------------------------------------------------------------------------------------------------


class Alone:
    """A communicator of one rank."""

    size = 1

    def Allreduce(self, send, receive):
        pass


def test_a_matrix_of_low_rank_comes_back():
    x = np.outer(np.arange(1, 31), np.linspace(-1, 1, 30)).astype(np.float32).ravel()
    average, got = PowerSGD(Alone(), rank=1), x.copy()
    average(got)
    assert np.allclose(got, x, atol=1e-4) and average.nbytes((900,)) == average.nbytes((30, 30)) == 240
    assert average.nbytes((4, 4)) == 4 * 16, "sent whole where factors are hardly smaller"


def test_powersgd_sends_its_error_later():
    draw, average = np.random.default_rng(8), PowerSGD(Alone(), rank=2)
    buffer, sent, total = np.empty(400, np.float32), np.zeros(400), np.zeros(400)
    for _ in range(20):
        buffer[:] = draw.standard_normal(400)
        total += buffer
        average(buffer)
        sent += buffer
    (_, residual), = average.kept.values()
    assert np.allclose(sent + residual, total, atol=1e-4) and np.abs(sent - total).max() > 0.1


def test_powersgd_refuses_other_arrays():
    with pytest.raises(ParameterError, match="at least 1"):
        PowerSGD(Alone(), rank=0)
    with pytest.raises(CodecError, match="float32"):
        PowerSGD(Alone())(np.ones(4))
