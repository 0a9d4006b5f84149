"""Calls of programs of native kernels by addresses only, without array objects."""

from __future__ import annotations

from dataclasses import replace

from stack.run.backend import AddressProgram
from stack.run.cache import Cache

from ..runtime.program import BlockProgram
from .callers_memory import address_program, callers_values
from .native_call import entering, native_kernels


def by_address(program: BlockProgram, cache: Cache | None) -> AddressProgram | None:
    """Returns how to call a program by addresses; None if a step or fresh value needs an array."""
    found = callers_values(program) if native_kernels(program) is not None else None
    if found is None:
        return None
    made = address_program(program, *found, lambda: 0)
    return replace(made, entered=entering(program, *found, cache))
