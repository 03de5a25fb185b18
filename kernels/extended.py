"""Reductions and division of x87's long double, NumPy's longdouble on x86, and of complex numbers of two of them.

numba has no such type. The operators here are written as LLVM's instructions on elements in memory: a kernel takes
addresses only. The other processors' long doubles have no kernel (see rules.EXTENDED).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .cache import native
from .deferred import Deferred, intrinsic
from .memory import only_compiled

__all__ = ["divide_address", "reduce_address"]

NBYTES = 16  # of an element, of which 10 are used


def _on_elements(compute: Callable[..., list[Any]], parts: int = 1) -> Deferred:
    """Return an intrinsic of the addresses of dst, a and b, each of so many elements.

    compute: a function of LLVM's builder and of the elements at a and b that returns those for dst.
    """

    def apply(typing: Any, dst: Any, a: Any, b: Any) -> Any:
        from llvmlite import ir
        from numba import types

        class Extended(ir.Type):  # type: ignore[misc]
            """LLVM's type of x87's numbers, which llvmlite does not have."""

            def _to_string(self) -> str:
                return "x86_fp80"

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Extended)

            def __hash__(self) -> int:
                return hash(Extended)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            pointer, word = Extended().as_pointer(), ir.IntType(64)
            of_parts = [[builder.inttoptr(builder.add(value, ir.Constant(word, NBYTES * i)), pointer)
                         for i in range(parts)] for value in values]
            to, *operands = of_parts
            elements = [builder.load(part) for operand in operands for part in operand]
            for element, part in zip(compute(builder, *elements), to):
                builder.store(element, part)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return intrinsic(apply, only_compiled)


def _prod_of_complex(builder: Any, a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    real = builder.fsub(builder.fmul(a, c), builder.fmul(b, d))
    return [real, builder.fadd(builder.fmul(a, d), builder.fmul(b, c))]


def _extreme(comparison: str) -> Callable[..., list[Any]]:
    """Return an operator that chooses one of two elements; a NaN in either, as in reduce.py."""

    def choose(builder: Any, x: Any, y: Any) -> list[Any]:
        first = builder.or_(builder.fcmp_ordered(comparison, x, y), builder.fcmp_unordered("uno", x, x))
        return [builder.select(first, x, y)]

    return choose


_OPERATORS = {
    "SUM": _on_elements(lambda builder, x, y: [builder.fadd(x, y)]),
    "PROD": _on_elements(lambda builder, x, y: [builder.fmul(x, y)]),
    "MAX": _on_elements(_extreme(">")),
    "MIN": _on_elements(_extreme("<")),
}
_PROD_OF_COMPLEX = _on_elements(_prod_of_complex, parts=2)
_DIVIDE = _on_elements(lambda builder, x, y: [builder.fdiv(x, y)])


@cache
def reduce_address(op: str, dtype: np.dtype) -> int:
    """Address of the kernel dst[i] = a[i] op b[i]; it stays valid."""
    combine, step = _OPERATORS[op], NBYTES
    if op == "PROD" and dtype.kind == "c":
        combine, step = _PROD_OF_COMPLEX, dtype.itemsize
    repeats = dtype.itemsize // step

    def kernel(dst: int, a: int, b: int, n: int) -> None:
        for i in range(n * repeats):
            combine(dst + i * step, a + i * step, b + i * step)

    return _compiled(kernel, f"{op.lower()}_{dtype.name}")


@cache
def divide_address(dtype: np.dtype) -> int:
    """Address of the kernel dst[i] = a[i] / b[0], each part of a complex number by b's real part; it stays valid."""
    repeats = dtype.itemsize // NBYTES

    def kernel(dst: int, a: int, b: int, n: int) -> None:
        for i in range(n * repeats):
            _DIVIDE(dst + i * NBYTES, a + i * NBYTES, b)

    return _compiled(kernel, f"scale_{dtype.name}")


def _compiled(kernel: Any, name: str) -> int:
    kernel.__name__ = kernel.__qualname__ = name  # numba makes symbols of it
    return native(kernel, ["int64"] * 4)
