"""States that are the same along an axis are held once, not for each place of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stream_blocks import check, loops

from stack.ir import parse
from stack.passes.blocking.stream_varying import varying

torch = pytest.importorskip("torch")
Tensor = Any


def test_sums_over_weights_have_no_rows(rng: np.random.Generator) -> None:
    """The matrix times the gain and times the bias of a norm: of the state's rows, one is held."""

    def program(x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (48,), gain, bias) @ weight

    sizes = ((2, 70, 48), (48,), (48,), (48, 24))
    func = check(program, [torch.from_numpy(rng.normal(size=s).astype("f")) for s in sizes])
    (loop,) = loops(func)
    carried = [a.shape for a in loop.blocks[0].params[1:]]
    assert sum(len(shape) == 2 for shape in carried) == 1
    assert sum(shape == (32,) for shape in carried) == 2


STREAM = """
func @f(%x: f32[8, 16], %w: f32[4, 16]) -> (f32[8, 4]) at tensor {
  %y = stream(%x, %w) {name="y"} : f32[8, 4] {(%p0: f32[8, 16], %p1: f32[4, 16])
    %one = broadcast(1.0:f32) {axes=[]} : f32[8, 16]
    %s0 = dot(%one, %p1) {rule="m k, n k -> m n"} : f32[8, 4]
    %s1 = dot(%p0, %p1) {rule="m k, n k -> m n"} : f32[8, 4]
    return %s0, %s1
  } {(%a: f32[8, 4], %b: f32[8, 4], %c: f32[8, 4], %d: f32[8, 4])
    return %CORRECTED, %b
  } {(%s: f32[8, 4], %t: f32[8, 4], %p0: f32[8, 16], %p1: f32[4, 16])
    %y = add(%s, %t) : f32[8, 4]
    return %y
  }
  return %y
}
"""


@pytest.mark.parametrize(("corrected", "axes"), [("a", {1}), ("b", {0, 1})])
def test_what_corrects_a_state_counts(corrected: str, axes: set[int]) -> None:
    (stream,) = (n for n in parse(STREAM.replace("CORRECTED", corrected)).nodes if n.op == "stream")
    first, second = varying(*stream.blocks[:2]).values()
    assert first == axes
    assert second == {0, 1}
