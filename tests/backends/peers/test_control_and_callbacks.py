"""Peers on loops of JAX programs, and on ops that only another framework has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stack

X = jnp.asarray(np.random.default_rng(0).standard_normal((6, 4)), jnp.float32)


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), jnp.zeros(4), x)


def repeated(x: Any) -> Any:
    return lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * 2 + x.sum(), c[1] + 1), (x, 0))


@pytest.mark.slow
@pytest.mark.parametrize("program", [scanned, repeated])
def test_inductor_compiles_loops_of_jax(program: Callable[..., Any]) -> None:
    call = stack.compile(program, X, backend="inductor")
    for got, want in zip(*map(jax.tree.leaves, (call(X), program(X))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


ON_ONE_CPU = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import stack, torch

def spectrum(x):
    return torch.fft.rfft((x @ x).bfloat16().float()).abs().sum(0)

x = torch.randn(300, 300)
call = stack.compile(spectrum, x, backend="xla")
assert call.run.coverage["fallback"]
torch.testing.assert_close(call(x), spectrum(x), rtol=2e-2, atol=2e-2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no way to ask for one CPU")
def test_xla_calls_torch_on_one_cpu() -> None:
    """XLA has one thread there, which must not wait for itself."""
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_CPU], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
