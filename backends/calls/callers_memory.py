"""Programs of kernels on the caller's memory: which values it holds, and the launches on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

from stack.ranges import recording
from stack.run.backend import AddressProgram

from ..runtime.device import RuntimeValue
from ..runtime.program import BlockProgram

Copy = tuple[int, int, int]  # target array, source array, bytes


def callers_values(program: BlockProgram) -> tuple[dict[RuntimeValue, int], list[Copy]] | None:
    """Returns the values in the caller's memory, and the results that are copies of others.

    A value has the number of the parameter, or after these of the result, whose memory it has. None
    if a fresh value needs an array.
    """
    roots = [value.root for value in program.results]
    # a kernel's output is a result of its own; any other result is a copy of an addressed value
    own = {root: number for number, root in reversed([*enumerate(roots)]) if root in program.fresh}
    numbers = {value: number for number, value in enumerate(program.inputs)}
    given = {**numbers, **{root: len(numbers) + number for root, number in own.items()}}
    is_whole = set(own) == set(program.fresh) and all(root in given for root in roots)
    if not is_whole or not {*program.freed} <= {*numbers}:
        return None
    copies = [
        (len(numbers) + number, given[root], root.bytes)
        for number, root in enumerate(roots)
        if own.get(root) != number
    ]
    return given, copies


def address_program(
    program: BlockProgram,
    given: Mapping[RuntimeValue, int],
    copies: Sequence[Copy],
    follow: Callable[[], int],
) -> AddressProgram:
    """Returns the program of `given` and `copies`, which launches on the stream of `follow`."""
    patches = [
        (table, slot, number) for value, number in given.items() for table, slot in value.slots
    ]
    launches, acquire, release = program.bound, program.lock.acquire, program.lock.release

    def call(addresses: Sequence[int]) -> None:
        acquire()
        try:
            for table, slot, number in patches:
                table[slot] = addresses[number]
            stream, opened = follow(), recording()
            if opened is not None:
                program.run_in_ranges(opened, launches, stream)
            else:
                for launch in launches:
                    launch(stream)
        finally:
            release()
        for target, source, size in copies:
            ctypes.memmove(addresses[target], addresses[source], size)

    return AddressProgram(call, [value.shape for value in program.results], bool(program.freed))
