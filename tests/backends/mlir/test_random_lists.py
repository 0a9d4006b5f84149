"""Random lists of steps on a CPU: the compiled kernel computes what its nest computes."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import around, close, drawn, drawn_nests, groups

from stack.backends.mlir import BACKEND
from stack.errors import StackError
from stack.ir.data import decode, encode
from stack.passes.distribute import distribute_kernel
from stack.passes.policies.cpu_products import strided_columns
from stack.passes.steps.primitives import Pack, parse_steps
from stack.target import as_cpu

LENGTH = 8  # of a list


def run(seeds: range, programs: range) -> int:
    """The number of compared kernels. Fails at the first that differs or does not compile."""
    cpu, found, compared = as_cpu(None), list(groups(programs, target=as_cpu(None))), 0
    for seed, rng, func, kernel, arrays, want, near in drawn_nests(seeds, found):
        done: list[str] = []
        for _ in range(LENGTH):
            (step,) = parse_steps(str(drawn(rng, kernel)).replace(" grid", " cores"))
            if not step.why_not(kernel, cpu):
                kernel = step.apply(kernel)
                done.append(str(step))
        if memory := strided_columns(kernel, cpu):
            kernel = Pack(memory).apply(kernel)
        made = around(distribute_kernel(kernel))
        given = [encode(a, p.dtype) for a, p in zip(arrays, made.params, strict=True)]
        try:
            have = BACKEND.compile(made, {}).run(given)
        except StackError as error:
            raise AssertionError(f"{seed}: {error} after {'; '.join(done)}\n{made}") from error
        for result, array, expected in zip(made.results, have, want, strict=True):
            same = close(decode(np.asarray(array), result.dtype), expected, near)
            assert same, f"{seed}: differs after {'; '.join(done)}\n{func}\n{made}"
        compared += 1
    return compared


def test_random_lists() -> None:
    assert run(range(20), range(10)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 200))
def test_many_random_lists(start: int) -> None:
    assert run(range(start, start + 200), range(start // 10, start // 10 + 20)) > 150
