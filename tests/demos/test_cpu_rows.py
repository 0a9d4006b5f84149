"""Programs of the CPU bench: both frameworks and both sources compute the same attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stack.demos.cpu_rows import attention
from stack.measure.cpu import cpu_cases

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
