"""Random JAX programs give what JAX gives, with at most twice its error."""

from __future__ import annotations

import jax
import pytest
from random_jax import random_jax

import stack

CHUNK = 50


def run(seed: int) -> None:
    program = random_jax(seed)
    if program is not None:
        compiled = stack.compile(program.fn, *program.args)
        wrong = program.compare(compiled(*program.args))
        assert not wrong, f"seed {seed}: {wrong}\n{program.text}"


@pytest.mark.parametrize("seed", range(50))
def test_program(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(1, 41))
def test_many(chunk: int) -> None:
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        run(seed)
    jax.clear_caches()
