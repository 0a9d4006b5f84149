"""Random JAX programs and their gradients: as in JAX, with at most twice its error."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from random_jax import random_jax

import stack

CHUNK = 50


def run(seed: int, with_gradients: bool = False) -> None:
    program = random_jax(seed)
    if program is not None and with_gradients:
        program = program.gradient()
    if program is not None:
        compiled = stack.compile(program.fn, *program.args)
        wrong = program.compare(compiled(*program.args))
        assert not wrong, f"seed {seed}: {wrong}\n{program.text}"


@pytest.mark.every(7)
@pytest.mark.parametrize("seed", range(CHUNK))
def test_program(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(1, 41))
def test_many(chunk: int) -> None:
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        run(seed)
    jax.clear_caches()


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(12))
def test_gradients(seed: int) -> None:
    run(seed, with_gradients=True)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(1, 21))
def test_many_gradients(chunk: int) -> None:
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        run(seed, with_gradients=True)
    jax.clear_caches()


# of 16 bits, whose sums round in another order than JAX's: about as far from f64
@pytest.mark.every(5)
@pytest.mark.parametrize("seed", [100016, 100079, 100099, 100117, 100122])
def test_gradients_of_16_bits(seed: int) -> None:
    run(seed, with_gradients=True)


# an extra operand named like a loop; an f16 value in f32 compared with itself in memory
@pytest.mark.parametrize("seed", [300170, 300256])
def test_gradients_that_were_wrong(seed: int) -> None:
    run(seed, with_gradients=True)


def test_a_wrong_gradient_is_seen() -> None:
    program = random_jax(0, steps=3)
    gradients = program and program.gradient()
    assert gradients
    assert not gradients.compare(gradients.results)
    assert gradients.compare([g * np.asarray(1.2, g.dtype) for g in gradients.results])
