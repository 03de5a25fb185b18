"""Pass the kernels for a plan's local work to compiled code, as an array of words.

`kernel` reduces elements in their own type. Several narrow operands (bfloat16, or codes) are widened to float32 strip
by strip, reduced by `wide`, and narrowed once.
"""

from __future__ import annotations

from typing import NamedTuple

# indices of the words
KERNEL, SCALE, DIVISOR, WIDE, WIDE_SCALE, WIDEN, NARROW, PARAMS, NARROW_PLACES = range(9)
# where elements are narrow: in codes alone; everywhere; everywhere but in codes, which are partial sums in float32
IN_CODES, EVERYWHERE, BUT_IN_CODES = range(3)


class KernelArgs(NamedTuple):
    """The addresses of kernels; 0 for none.

    - kernel: dst = a op b on elements; 0 for narrow ones with stochastic rounding.
    - scale, divisor: dst = a / b, and the address of b, for averages.
    - wide, wide_scale: the same on float32.
    - widen, narrow: convert between narrow elements and float32; params is their third argument.
    - narrow_places: IN_CODES, EVERYWHERE or BUT_IN_CODES, where CODED is the plan's name for codes.
    """

    kernel: int = 0
    scale: int = 0
    divisor: int = 0
    wide: int = 0
    wide_scale: int = 0
    widen: int = 0
    narrow: int = 0
    params: int = 0
    narrow_places: int = IN_CODES


NO_KERNELS = KernelArgs()
