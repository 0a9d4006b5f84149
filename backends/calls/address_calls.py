"""Calls programs that consist of kernels by addresses only, without array objects."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from stack.ranges import recording
from stack.run.backend import AddressProgram
from stack.run.cache import Cache

from ..runtime.program import BlockProgram
from .native_call import entering, native_kernels


def by_address(program: BlockProgram, cache: Cache | None) -> AddressProgram | None:
    """Returns how to call a program by addresses; None if a step or fresh value needs an array."""
    roots = [value.root for value in program.results]
    # a kernel's output is a result of its own; any other result is a copy of an addressed value
    own = {root: number for number, root in reversed([*enumerate(roots)]) if root in program.fresh}
    numbers = {value: number for number, value in enumerate(program.inputs)}
    given = {**numbers, **{root: len(numbers) + number for root, number in own.items()}}
    is_whole = set(own) == set(program.fresh) and all(root in given for root in roots)
    if native_kernels(program) is None or not is_whole or not {*program.freed} <= {*numbers}:
        return None
    patches = [
        (table, slot, number) for value, number in given.items() for table, slot in value.slots
    ]
    copies = [
        (len(numbers) + number, given[root], root.bytes)
        for number, root in enumerate(roots)
        if own.get(root) != number
    ]
    launches, acquire, release = program.bound, program.lock.acquire, program.lock.release

    def call(addresses: Sequence[int]) -> None:
        acquire()
        try:
            for table, slot, number in patches:
                table[slot] = addresses[number]
            opened = recording()
            if opened is not None:
                program.run_in_ranges(opened, launches, 0)
            else:
                for launch in launches:
                    launch(0)
        finally:
            release()
        for target, source, size in copies:
            ctypes.memmove(addresses[target], addresses[source], size)

    shapes, frees = [value.shape for value in program.results], bool(program.freed)
    return AddressProgram(call, shapes, frees, entering(program, given, copies, cache))
