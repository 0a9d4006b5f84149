"""Programs of the CPU bench: both frameworks and both sources compute the same attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.backends.eager import native_eager
from stack.demos.cpu_rows import attention, awkward
from stack.frontends.torch import FRONTEND
from stack.measure.cpu import LAYOUTS, cpu_cases
from stack.measure.systems import capture_program

pytest.importorskip("torch")
pytest.importorskip("jax")


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_attention_is_one_function(mask: str) -> None:
    found: list[Any] = []
    for frontend in ("torch", "jax"):
        for source in ("naive", "library"):
            function, args = attention(frontend, source, mask, 40)
            found.append(np.asarray(function(*args)))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4, atol=1e-5)


def test_the_suite_has_attention_from_both_sources() -> None:
    cases = [c for c in cpu_cases() if c.row == "C2"]
    assert {c.case["source"] for c in cases} == {"naive", "library"}
    assert {c.case["seq"] for c in cases} == {512, 1024, 2048, 4096}
    # of 512 x 512 weights a causal mask leaves those on and below the diagonal
    left = np.tri(512).mean()
    assert {c.work for c in cases if c.case == {**c.case, "mask": "causal", "seq": 512}} == {left}
    assert {c.work for c in cases if c.case["mask"] == "none"} == {1.0}


@pytest.mark.every(5)
@pytest.mark.parametrize("name", ["product", "softmax", "layer_norm", "gelu_erf", "relu", "sum"])
@pytest.mark.parametrize("layout", ["dense", *LAYOUTS])
def test_awkward_input_is_right_in_every_call(name: str, layout: str) -> None:
    function, args = awkward("torch", name, 7, 13, layout)
    assert args[0].shape == (7, 13)
    assert args[0].is_contiguous() == (layout in ("dense", "unaligned"))
    compiled = stack.compile(function, *args)
    wanted = function(*(a.double() for a in args))
    for _ in range(2):
        np.testing.assert_allclose(compiled(*args), wanted, rtol=1e-5, atol=1e-5)


def test_awkward_input_is_torchs_alone() -> None:
    with pytest.raises(ValueError, match="strided"):
        awkward("jax")


@pytest.mark.parametrize("layout", ["dense", *LAYOUTS])
def test_an_expanded_row_lies_in_memory_once(layout: str) -> None:
    function, (x,) = awkward("torch", "sum", 7, 13, layout)
    rows = 1 if layout == "expanded" else 7
    assert capture_program(FRONTEND, function, (x,)).given == [4 * rows * 13]


@pytest.mark.parametrize("layout", ["dense", *LAYOUTS])
def test_peers_are_given_what_their_user_gives(layout: str) -> None:
    function, (x, *_) = awkward("torch", "softmax", 7, 13, layout)
    program = capture_program(FRONTEND, function, (x,))
    executable = native_eager(program.captured, {})
    assert executable.prepare is not None
    for _ in range(2):
        (given,) = executable.prepare(program.storage)
        assert given.stride() == x.stride()
        assert given.data_ptr() % 64 == x.storage_offset() * 4 % 64
        assert given.data_ptr() != x.data_ptr()
        np.testing.assert_array_equal(given, x)
    (found,) = executable.run(program.storage)
    np.testing.assert_allclose(found, function(x.double()), rtol=1e-5)
