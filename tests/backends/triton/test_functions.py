"""Functions that kernels bring along, on NumPy's f32 in place of the language."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stack.backends.triton.functions import FUNCTIONS, used

LANGUAGE = SimpleNamespace(abs=np.abs, exp=np.exp, where=np.where)
EXACT: dict[str, Callable[[Any], Any]] = {"tanh_f32": np.tanh, "erf_f32": np.vectorize(math.erf)}


def function(name: str) -> Callable[[np.ndarray], np.ndarray]:
    module: dict[str, Any] = {"tl": LANGUAGE}
    exec(FUNCTIONS[name].replace("@triton.jit\n", ""), module)
    return module[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_units_in_the_last_place(name: str, rng: np.random.Generator) -> None:
    sizes = np.concatenate([rng.uniform(0, 12, 100000), 10 ** rng.uniform(-30, 1, 100000)])
    x = (sizes * rng.choice([-1, 1], sizes.shape)).astype(np.float32)
    want = EXACT[name](x.astype(np.float64))
    made = function(name)(x)
    assert made.dtype == np.float32
    assert np.max(np.abs(made - want) / np.spacing(np.abs(want).astype(np.float32))) < 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ends(name: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    with np.errstate(all="ignore"):
        made = function(name)(x)
    np.testing.assert_array_equal(made, np.array([1, -1, np.nan, 0, -0.0], np.float32))
    assert np.signbit(made[4])
    assert not np.signbit(made[3])


def test_a_module_has_what_it_calls() -> None:
    assert used("y = erf_f32(x)") == FUNCTIONS["erf_f32"]
    assert used("y = tl.exp(x)") == ""
