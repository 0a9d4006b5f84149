"""A whole call as a single Python function, in native code.

A small kernel takes less time than a few steps of Python's interpreter. The function checks that
arguments match, allocates results, writes addresses to the tables of kernels, and runs the kernels,
all through Python's C API. For anything about arrays it calls the framework's own functions. While
kernels run, the GIL is released and the program's own lock is held.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from stack.run.backend import CallLayout, Direct
from stack.run.cache import Cache

from ..mlir import elf, jit, threads
from ..runtime.device import RuntimeValue, Table
from ..runtime.plan import KernelStep, RuntimeStep
from ..runtime.program import BlockProgram
from .callers_memory import Copy
from .native_call_text import SYMBOL, TEXT

_TAKES_ONE = 8  # METH_O: takes one argument


class _Method(ctypes.Structure):
    """PyMethodDef. A Python function does not own it; the object it is bound to keeps it alive."""

    code: jit.NativeKernel
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
_methods: list[_Method | None] = []  # for this process: empty before the first program


def _method(cache: Cache | None) -> _Method | None:
    """Returns the method object that Python calls; compiles its code on first use.

    None if MLIR's engine loaded the code, because its functions take packed arguments.
    """
    with _lock:
        if not _methods:
            native = jit.build(TEXT, [SYMBOL], cache)[SYMBOL]
            made = _Method(SYMBOL.encode(), native.address, _TAKES_ONE, None)
            made.code = native
            _methods.append(made if isinstance(native.owner, elf.Image) else None)
    return _methods[0]


def ahead(cache: Cache | None) -> None:
    """Compile the function in the background, as `pool.ahead` does."""
    if not _methods and threads.cores() > 1:
        threads.submit(_method, cache)


def native_kernels(program: BlockProgram) -> list[tuple[RuntimeStep, jit.NativeKernel]] | None:
    """The steps of a program with their code; None if any step is not native."""
    found: list[tuple[RuntimeStep, jit.NativeKernel]] = []
    for step in program.steps:
        if not isinstance(step, KernelStep) or not isinstance(step.kernel, jit.NativeKernel):
            return None
        found.append((step, step.kernel))
    return found


def entering(
    program: BlockProgram,
    numbers: Mapping[RuntimeValue, int],
    copies: Sequence[Copy],
    cache: Cache | None,
) -> Callable[[CallLayout], Direct | None]:
    """Returns the factory of a program's call function, for arrays of some framework.

    Args:
        program: one that consists only of kernels.
        numbers: for each value, the number of the parameter, or after these of the result, whose
            memory it has; other values stay where they are.
        copies: the copies to make after the kernels, by such numbers.
    """
    steps = native_kernels(program) or []

    def entered(crossing: CallLayout) -> Direct | None:
        method = _method(cache)
        if method is None:
            return None
        arrays = [*crossing.places, *(crossing.count + i for i in crossing.numbers)]
        tables: list[Table] = []
        slots: list[tuple[int, int]] = []
        for step, kernel in steps:
            roots = [value.root for value in (*step.args, *step.outs)]
            known = [0 if r.array is None else r.address(r.array) for r in roots]
            table = jit.table([*known, *kernel.fixed])
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
