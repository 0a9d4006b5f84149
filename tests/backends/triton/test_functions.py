"""Functions that kernels bring along, on NumPy's f32 in place of the language."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stack.backends.triton.functions import FUNCTIONS, used

LANGUAGE = SimpleNamespace(
    abs=np.abs,
    exp=np.exp,
    exp2=np.exp2,
    where=np.where,
    minimum=lambda a, b, propagate_nan: np.minimum(a, np.float32(b)),
    maximum=lambda a, b, propagate_nan: np.maximum(a, np.float32(b)),
    PropagateNan=SimpleNamespace(ALL=None),
)
EXACT: dict[str, Callable[[Any], Any]] = {
    "tanh_f32": np.tanh,
    "brief_tanh": np.tanh,
    "erf_f32": np.vectorize(math.erf),
}


def function(name: str) -> Callable[[np.ndarray], np.ndarray]:
    module: dict[str, Any] = {"tl": LANGUAGE, "inverse": lambda x: np.float32(1) / x}
    exec(FUNCTIONS[name].replace("@triton.jit\n", ""), module)
    return module[name]


@pytest.mark.parametrize("name", EXACT)
def test_two_units_in_the_last_place(name: str, rng: np.random.Generator) -> None:
    sizes = np.concatenate([rng.uniform(0, 12, 100000), 10 ** rng.uniform(-30, 1, 100000)])
    x = (sizes * rng.choice([-1, 1], sizes.shape)).astype(np.float32)
    want = EXACT[name](x.astype(np.float64))
    made = function(name)(x)
    assert made.dtype == np.float32
    assert np.max(np.abs(made - want) / np.spacing(np.abs(want).astype(np.float32))) < 2


@pytest.mark.parametrize("name", EXACT)
def test_ends(name: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    with np.errstate(all="ignore"):
        made = function(name)(x)
    np.testing.assert_array_equal(made, np.array([1, -1, np.nan, 0, -0.0], np.float32))
    assert np.signbit(made[4])
    assert not np.signbit(made[3])


def test_erf_after_a_product(rng: np.random.Generator) -> None:
    sizes = np.concatenate([rng.uniform(0, 6, 100000), 10 ** rng.uniform(-18, 1, 100000)])
    x = (sizes * rng.choice([-1, 1], sizes.shape)).astype(np.float32)
    want = np.vectorize(math.erf)(x.astype(np.float64))
    made = function("erf_ratio")(x)
    assert made.dtype == np.float32
    assert np.max(np.abs(made - want) / np.spacing(np.abs(want).astype(np.float32))) < 6
    assert np.max(np.abs(made)) < 1 + 2e-7
    ends = function("erf_ratio")(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32))
    np.testing.assert_allclose(ends, [1, -1, np.nan, 0, 0], atol=1e-7)
    assert np.signbit(ends[4])


def test_the_interpreter_has_no_instructions_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "y = round_bf16(x)\nz = erf_ratio(y)"
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert used(code).count("asm") == 2
    assert used(code).count("def ") == 3
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "asm" not in used(code)
    assert used(code).count("def ") == 3


def test_a_module_has_what_it_calls() -> None:
    assert used("y = erf_f32(x)") == FUNCTIONS["erf_f32"]
    assert used("y = tl.exp(x)") == ""
