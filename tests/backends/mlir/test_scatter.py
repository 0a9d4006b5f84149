"""Stores of each lane at its own address, for numbers of lanes that no machine has."""

from __future__ import annotations

import numpy as np
import pytest

from stack.backends.mlir import BACKEND
from stack.ir import parse

# Two scatters under a mask of the last lane, and an `atan` between them: in LLVM's code its
# selects take mask registers, so lanes that LLVM added without a mask are seen to write.
KERNEL = """
func @f(%x: f32[{length}, 2]) -> (f32[{length}], f32[{length}]) at tensor {{
  %made = kernel(%x) {{level="loop", name="k", ops=["sub", "atan"]}} \
: (f32[{length}], f32[{length}]) {{(%p: f32[{length}, 2] in global, %a: f32[{length}] in global, \
%b: f32[{length}] in global)
    %iota = iota() {{axis=0}} : i64<{lanes}>
    %twice = mul(%iota, 2:i64) : i64<{lanes}>
    %zero = broadcast(0:i64) {{axes=[]}} : i64<{lanes}>
    %both = loop(%a, %b) {{kind="serial"}} : (f32[{length}] in global, f32[{length}] in global) \
{{(%k < 2, %a0: f32[{length}] in global, %b0: f32[{length}] in global)
      %at = add(%twice, %k) : i64<{lanes}>
      %inside = lt(%at, {length}:i64) : bool<{lanes}>
      %x0 = load(%p, %at, %zero, %inside, 0.0:f32) : f32<{lanes}>
      %less = sub(%x0, -1.7:f32) : f32<{lanes}>
      %a1 = store(%a0, %less, %at, %inside) : f32[{length}] in global
      %angle = atan(%less) : f32<{lanes}>
      %b1 = store(%b0, %angle, %at, %inside) : f32[{length}] in global
      return %a1, %b1
    }}
    %a2 = item(%both) {{index=0}} : f32[{length}] in global
    %b2 = item(%both) {{index=1}} : f32[{length}] in global
    return %a2, %b2
  }}
  %less = item(%made) {{index=0}} : f32[{length}]
  %angle = item(%made) {{index=1}} : f32[{length}]
  return %less, %angle
}}
"""


@pytest.mark.parametrize("lanes", [2, 3, 7, 16, 17, 31, 33])
def test_lanes_that_are_off_write_nothing(lanes: int) -> None:
    length = 2 * lanes - 1
    compiled = BACKEND.compile(parse(KERNEL.format(lanes=lanes, length=length)), {})
    x = np.random.default_rng().standard_normal((length, 2)).astype(np.float32)
    for _ in range(20):
        less, angle = compiled.run([x])
    expected = x[:, 0].astype(np.float64) + 1.7
    np.testing.assert_allclose(np.asarray(less), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(angle), np.arctan(expected), rtol=1e-5, atol=1e-6)
