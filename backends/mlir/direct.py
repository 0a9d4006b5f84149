"""Programs of kernels alone, called by addresses: no array is made, held or asked."""

from __future__ import annotations

from collections.abc import Sequence

from stack.run.backend import ByAddress

from ..runtime.program import Program
from .loops import native_kernels


def by_address(program: Program) -> ByAddress | None:
    """How a program is called by addresses; None where a step or a result needs an array."""
    roots = [value.root for value in program.results]
    is_own = len(set(roots)) == len(roots) and set(roots) == set(program.fresh)
    if native_kernels(program) is None or not is_own or not {*program.freed} <= {*program.inputs}:
        return None
    patches = [
        (table, slot, number)
        for number, value in enumerate([*program.inputs, *roots])
        for table, slot in value.slots
    ]

    def call(addresses: Sequence[int]) -> None:
        with program.lock:
            for table, slot, number in patches:
                table[slot] = addresses[number]
            for launch in program.bound:
                launch(0)

    return ByAddress(call, [value.shape for value in program.results], bool(program.freed))
