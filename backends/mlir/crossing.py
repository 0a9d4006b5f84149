"""A whole call as one function of Python's, in native code.

A small kernel takes less time than a few steps of Python's interpreter. The function asks whether
arguments are alike, makes memory for results, tells kernels their addresses and runs these, all
through Python's C API: what an array is, the framework's own functions say, which it calls. While
kernels run, Python's lock is free, and the program's own is held.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from stack.run.backend import Crossing, Direct
from stack.run.cache import Cache

from ..runtime.program import Program
from ..runtime.values import Table, Value
from . import elf, jit, threads, workers
from .crossing_text import SYMBOL, TEXT
from .loops import native_kernels

Copy = tuple[int, int, int]  # to which array, from which, how many bytes

_TAKES_ONE = 8  # METH_O: the function itself, and its argument


class _Method(ctypes.Structure):
    """PyMethodDef. A function of Python's does not own it: what the function is bound to does."""

    code: jit.Library
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_bound: Any = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))

_lock = threading.Lock()
_methods: list[_Method | None] = []  # of this process: none before the first program


def _method(cache: Cache | None) -> _Method | None:
    """What Python calls; None where the code is the engine's, which takes packed arguments."""
    with _lock:
        if not _methods:
            library = jit.build(TEXT, [SYMBOL], cache)
            made = _Method(SYMBOL.encode(), library.addresses[SYMBOL], _TAKES_ONE, None)
            made.code = library
            _methods.append(made if isinstance(library.owner, elf.Image) else None)
    return _methods[0]


def ahead(cache: Cache | None) -> None:
    """Have the function compiled beside what comes first, as `pool.ahead`."""
    if not _methods and threads.cores() > 1:
        workers.submit(_method, cache)


def entering(
    program: Program, numbers: Mapping[Value, int], copies: Sequence[Copy], cache: Cache | None
) -> Callable[[Crossing], Direct | None]:
    """What makes the function of a program, for arrays that cross in some way.

    Args:
        program: one of kernels alone.
        numbers: which parameter, or past these which result, has the memory of a value; others stay
            where they are.
        copies: what is done after the kernels, by such numbers.
    """
    steps = native_kernels(program) or []

    def entered(crossing: Crossing) -> Direct | None:
        method = _method(cache)
        if method is None:
            return None
        arrays = [*crossing.places, *(crossing.count + i for i in crossing.numbers)]
        tables: list[Table] = []
        slots: list[tuple[int, int]] = []
        for step, _ in steps:
            roots = [value.root for value in (*step.args, *step.outs)]
            table = jit.table([0 if r.array is None else r.address(r.array) for r in roots])
            for slot, root in enumerate(roots):
                if root in numbers:
                    place = ctypes.addressof(table) + slot * ctypes.sizeof(ctypes.c_int64)
                    slots += [(place, arrays[numbers[root]])]
            tables.append(table)
        code = [kernel.address for _, kernel in steps]
        kernels = [*zip(code, map(ctypes.addressof, tables), strict=True)]
        moves = [(arrays[target], arrays[source], size) for target, source, size in copies]
        counts = map(len, (crossing.layouts, slots, kernels, moves))
        plan = jit.table([crossing.count, *counts, *chain(*slots, *kernels, *moves)])
        calls = crossing.is_alike, crossing.address, crossing.make, tuple(crossing.layouts)
        lock = program.lock.acquire, program.lock.release
        held = method, tables, program, steps
        return _bound(ctypes.addressof(method), (*calls, *lock, None, bytes(plan), held), None)

    return entered
