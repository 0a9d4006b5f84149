"""Values of a compiled function, from numbers to numbers, whatever their storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stack.ir import Builder, Func, Node, param, tensor
from stack.ir.data import decode, encode
from stack.run.backend import Executable
from stack.target import cpu_at_hand

if TYPE_CHECKING:
    from kernel_cases import Spec
    from random_programs import Program

needs_avx512 = pytest.mark.skipif(cpu_at_hand().vector_bytes < 64, reason="this CPU has no AVX-512")


def func_of(build: Callable[..., Node | tuple[Node, ...]], specs: Sequence[Spec]) -> Func:
    """A function of tensors x0, x1 and so on."""
    b = Builder()
    params = [param(f"x{i}", tensor(*s)) for i, s in enumerate(specs)]
    made = build(b, *params)
    return b.func("main", params, made if isinstance(made, tuple) else (made,))


def twice(
    executable: Executable, func: Func, arrays: Sequence[np.ndarray]
) -> Iterator[list[np.ndarray]]:
    """The results of two calls: the second finds an arena full of old values."""
    stored = [encode(np.asarray(a), p.dtype) for a, p in zip(arrays, func.params, strict=True)]
    for _ in range(2):
        found = executable.run(stored)
        yield [decode(f, r.dtype) for f, r in zip(found, func.results, strict=True)]


def agrees(executable: Executable, func: Func, arrays: Sequence[np.ndarray], near: float) -> None:
    """Both calls give what the interpreter gives."""
    expected = func.interpret(*arrays)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for found in twice(executable, func, arrays):
        for want, got in zip(wanted, found, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=near, atol=near
            )


def is_sound(executable: Executable, program: Program) -> None:
    """Both calls give what a random program is known to give."""
    for found in twice(executable, program.func, program.inputs):
        wrong = program.compare(found)
        assert not wrong, f"{wrong}\n{program.func}"
