"""Codecs: encode float32 as fewer bytes, with the cost and the error bound of each.

    cast(bfloat16)   2 bytes; float16 2, float8_e4m3fn and float8_e5m2 1: elements of fewer bits
    int8(group=256)  1 byte and 4 for a group; int4(group=64) half a byte and 4 for a group
    topk(fraction=0.01, group=4096)    6 bytes for each of the largest elements of a group; also topk(k=41)

A codec is made by `parse`, is equal to those that read alike, and is written as it is read.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import CodecError, ParameterError
from ..kernels import codecs as kernels
from ..kernels import reduce
from ..kernels.memory import address_of
from ..kernels.rules import LOW

__all__ = ["GROUPS", "NAMES", "Codec", "parse"]

MOST = 4096  # elements of a group: what local work takes at once
GROUPS = {"int8": 256, "int4": 64, "topk": MOST}
NAMES = ("cast", *GROUPS)
FRACTION = 0.01
LEVELS = {"int8": 127, "int4": 7}
_MILLION = 1_000_000
# of a cast: bits of the mantissa, and the smallest number
_PRECISION = {"bfloat16": (7, 2.0**-133), "float16": (10, 2.0**-24), "float8_e4m3fn": (3, 2.0**-9),
              "float8_e5m2": (2, 2.0**-16)}  # fmt: skip


@dataclass(frozen=True)
class Codec:
    """One codec. name: of its kernels; group: elements encoded together; k: of topk, or minus millionths of a group."""

    name: str
    group: int
    k: int = 0

    def __str__(self) -> str:
        if self.name in LOW:
            return f"cast({self.name})"
        most = "" if self.name != "topk" else f"k={self.k}, " if self.k > 0 else f"fraction={-self.k / _MILLION:g}, "
        return f"{self.name}({most}group={self.group})"

    def of_group(self, group: int) -> Codec:
        """Return the same with another group. Raises ParameterError for a group that it cannot have."""
        if self.name in LOW:
            raise ParameterError(f"{self} encodes every element by itself; it has no group")
        _check_group(self.name, group)
        return replace(self, group=group)

    def nbytes(self, n: int) -> int:
        """Return the bytes of codes of n elements."""
        whole, rest = divmod(n, self.group)
        return whole * self._of_group(self.group) + (self._of_group(rest) if rest else 0)

    def _of_group(self, m: int) -> int:
        if self.name in LOW:
            return m * LOW[self.name].itemsize
        if self.name == "topk":
            return 6 * int(kernels.kept(self.k, m))
        return 4 + (m if self.name == "int8" else (m + 1) // 2)

    @property
    def share(self) -> Fraction:
        """Return the bytes of codes for each byte of float32, in whole groups."""
        return Fraction(self._of_group(self.group), 4 * self.group)

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """Return the addresses of encode and decode (kernels/codecs.py). Raises CodecError if there are none."""
        try:
            return kernels.addresses(self.name)
        except Exception as error:  # there is no numba, or its inner parts are others
            what = f"{self} has compiled kernels only"
            raise CodecError(f"{what}, and they can be neither loaded nor compiled") from error

    def params(self, keep: bool = False) -> np.ndarray:
        """Return new words for the kernels. keep: leave in the source what was not sent."""
        return np.array([0, self.group, self.k, keep], np.int64)

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """Return the largest error of each decoded element, as float32.

        int8 and int4: half a scale, largest of the group / (2 * 127) or (2 * 7), and four roundings of float32; groups
        below kernels.SMALLEST are sent as zeros. A cast: half a unit of the last bit. topk: the largest not sent.
        """
        x = np.asarray(x, np.float32)
        sizes = np.abs(x.astype(np.float64))
        if self.name in LOW:
            bits, smallest = _PRECISION[self.name]
            return np.maximum(sizes * 2.0 ** -(bits + 1), smallest / 2)
        bound = np.empty(len(x))
        for first in range(0, len(x), self.group):
            part = sizes[first : first + self.group]
            if self.name == "topk":
                k = kernels.kept(self.k, len(part))
                bound[first : first + self.group] = np.sort(part)[-k - 1] if len(part) > k else 0.0
            else:
                half = part.max() / (2 * LEVELS[self.name])
                slack = part.max() * 2.0**-22
                bound[first : first + self.group] = max(half + slack, float(kernels.SMALLEST))
        return bound

    def encode(self, x: np.ndarray, keep: bool = False, nonfinite: str = "raise") -> np.ndarray:
        """Return the codes of float32. keep: leave in x what they do not hold.

        Raises CodecError for other types, and for what is not finite unless nonfinite is "pass".
        """
        check_array(self, x)
        codes, params = np.empty(self.nbytes(x.size), np.uint8), self.params(keep)
        reduce.call(self.addresses[0], address_of(codes), address_of(x), address_of(params), x.size)
        check_finite(self, params, nonfinite)
        return codes

    def decode(self, codes: np.ndarray, n: int, nonfinite: str = "raise") -> np.ndarray:
        """Return the n float32 of codes. Raises CodecError as encode()."""
        if codes.nbytes != self.nbytes(n):
            raise CodecError(f"{self} makes {self.nbytes(n)} bytes of {n} elements, and these are {codes.nbytes}")
        x, params = np.empty(n, np.float32), self.params()
        reduce.call(self.addresses[1], address_of(x), address_of(codes), address_of(params), n)
        check_finite(self, params, nonfinite)
        return x


def check_array(codec: Codec, x: np.ndarray) -> None:
    """Raise CodecError unless an array is one that codecs take: contiguous, of float32."""
    if x.dtype != np.float32 or not x.flags.c_contiguous:
        what = x.dtype if x.dtype != np.float32 else "not contiguous"
        raise CodecError(f"{codec} is lossy and takes contiguous float32, and the array is {what}; convert it first")


def check_finite(codec: Codec, params: np.ndarray, nonfinite: str = "raise") -> None:
    """Raise CodecError where a kernel met what is no finite number."""
    if params[kernels.PROBLEMS] and nonfinite == "raise":
        raise CodecError(f"{codec} met NaN, infinity or a number too large for it; what it gives is wrong")


def parse(spec: str) -> Codec:
    """Return the codec that a text names. Raises ParameterError in words.

    >>> str(parse("int8")), str(parse("bfloat16")), str(parse("topk(fraction=0.01)"))
    ('int8(group=256)', 'cast(bfloat16)', 'topk(fraction=0.01, group=4096)')
    """
    name, words, parameters = _read(spec)
    if name == "cast" and len(words) == 1 and not parameters:
        name, words = words[0], []
        if name not in LOW:
            raise ParameterError(f"the codec {spec!r} casts to {name}; it may be {', '.join(LOW)}")
    if name in LOW and not words and not parameters:
        return Codec(name, 1)
    if name not in GROUPS or words:
        raise ParameterError(f"there is no codec {spec!r}; there are {', '.join((*NAMES, *LOW))}")
    known = {"group", "k", "fraction"} if name == "topk" else {"group"}
    if unknown := sorted(set(parameters) - known):
        has = ", ".join(sorted(known))
        raise ParameterError(f"the codec {name} has no parameter {', '.join(unknown)}; it has {has}")
    group = parameters.get("group", GROUPS[name])
    _check_group(name, group)
    return Codec(name, group, _most(parameters) if name == "topk" else 0)


def _read(spec: str) -> tuple[str, list[str], dict[str, Any]]:
    """Return name, bare words and parameters of "name(word, key=value)"."""
    try:
        call = ast.parse(spec.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        words = [arg.id for arg in call.args if isinstance(arg, ast.Name)]
        if len(words) < len(call.args):
            raise ValueError
        return call.func.id, words, {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, TypeError, ValueError):
        raise ParameterError(f"cannot read the codec {spec!r}: write it as name(key=value, …)") from None


def _check_group(name: str, group: Any) -> None:
    if type(group) is not int or group < 1 or MOST % group:
        raise ParameterError(f"the group of {name} is {group!r}; it must be a power of two from 1 to {MOST}")


def _most(parameters: dict[str, Any]) -> int:
    """Return k, or minus the millionths of a group."""
    if "k" in parameters and "fraction" in parameters:
        raise ParameterError("topk takes k or fraction, not both")
    if "k" in parameters:
        if type(parameters["k"]) is not int or parameters["k"] < 1:
            raise ParameterError(f"k of topk is {parameters['k']!r}; it must be a whole number of at least 1")
        return int(parameters["k"])
    fraction = parameters.get("fraction", FRACTION)
    if not isinstance(fraction, (int, float)) or not 1e-6 <= fraction <= 1:
        raise ParameterError(f"fraction of topk is {fraction!r}; it must be above 0 and at most 1")
    return -round(fraction * _MILLION)
