"""What compiled loops share: how they are compiled, and C's ``memcpy``; see :mod:`.compiled`."""

from __future__ import annotations

from typing import Any

import numba as nb
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

jit = nb.njit(nogil=True, cache=True, boundscheck=False)
_raw_memcpy: Any = cgutils.raw_memcpy


def _memcpy(_context: Any, _to: Any, _source: Any, _count: Any) -> Any:
    """C's, of addresses; a loop over bytes would copy one at a time, since arrays may overlap."""

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, origin = (builder.inttoptr(address, byte) for address in given[:2])
        _raw_memcpy(builder, target, origin, given[2], 1)
        return context.get_dummy_value()

    return nb.void(nb.uint64, nb.uint64, nb.uint64), generate


memcpy: Any = intrinsic(_memcpy)
