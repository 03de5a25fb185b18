"""Make arrays on the memory of buffers that are no arrays, such as bytes and memoryviews, for the fast path.

That may run any code of Python's, even another call on the same communicator.
"""

from __future__ import annotations

from ..kernels.deferred import njit
from ..kernels.memory import call_long, load
from . import context as field
from .signature import TYPE, item, sequence_length


@njit
def make_array(context, message):  # type: ignore[no-untyped-def]
    """Return a new reference to an array on the memory of a message's buffer, if that has memory and is no array.

    Else return 0; -1 with an error of Python's, which is Ctrl-C.
    """
    n = sequence_length(context, message)
    if n == 0 or n == 1:
        return 0
    buffer = item(context, message, 0) if n > 1 else message
    kind = load(buffer + TYPE)
    if kind == context[field.NDARRAY] or buffer == context[field.NONE] or buffer == context[field.IN_PLACE]:
        return 0
    context[field.OBJECT] = buffer
    quick = kind == context[field.BYTES] or kind == context[field.BYTEARRAY]
    function, arguments = context[field.FROMBUFFER if quick else field.AS_ARRAY], 2 if quick else 1
    array = call_long(context[field.VECTORCALL], (function, context.ctypes.data + 8 * field.OBJECT, arguments, 0))
    if array == context[field.NONE]:
        call_long(context[field.DECREF], (array,))
        return 0
    return array if array != 0 else -1
