"""Values that sweeps share: what is loaded lane by lane is kept, what lies together is not."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import distributed

from stack.ir import parse

BEFORE = """func @main(%x: f32[{shape}]) -> (f32[3, 5]) at tensor {{
  %y = kernel(%x) {{level="tile", name="centred", ops=["reduce", "sub"]}} : f32[3, 5] \
{{(%p0: f32[{shape}] in global, %o0: f32[3, 5] in global)
    %lane = iota() {{axis=0}} : i64<5>
    %loop = loop(%o0) {{kind="grid"}} : f32[3, 5] in global {{(%i < 3, %m: f32[3, 5] in global)
      %row = broadcast(%i) {{axes=[]}} : i64<5>
      %v = load(%p0, {index}) : f32<5>
      %sum = reduce(%v) {{axes=[0], kind="sum"}} : f32[]
      %new = sub(%v, %sum) : f32<5>
      %store = store(%m, %new, %i, 0:i64) : f32[3, 5] in global
      return %store
    }}
    return %loop
  }}
  return %y
}}
"""
KEPT = """func @main(%x: f32[5, 3]) -> (f32[3, 5]) at tensor {
  %y = kernel(%x) {level="loop", name="centred", ops=["reduce", "sub"]} : f32[3, 5] \
{(%p0: f32[5, 3] in global, %o0: f32[3, 5] in global)
    %lane = iota() {axis=0} : i64<5>
    %alloc = alloc() {name="keep__1"} : f32[5] in local
    %loop = loop(%o0) {kind="parallel"} : f32[3, 5] in global {(%i < 3, %m: f32[3, 5] in global)
      %row = broadcast(%i) {axes=[]} : i64<5>
      %v = load(%p0, %lane, %row) : f32<5>
      %store = store(%alloc, %v, 0:i64) : f32[5] in local
      %v_1 = load(%store, 0:i64) : f32<5>
      %sum = reduce(%v) {axes=[0], kind="sum"} : f32[]
      %new = sub(%v_1, %sum) : f32<5>
      %store_1 = store(%m, %new, %i, 0:i64) : f32[3, 5] in global
      return %store_1
    }
    return %loop
  }
  return %y
}
"""
COLUMN = BEFORE.format(shape="5, 3", index="%lane, %row")
ROW = BEFORE.format(shape="3, 5", index="%i, 0:i64")


def test_a_column_is_loaded_once() -> None:
    assert str(distributed(COLUMN)) == str(parse(KEPT))


def test_a_row_is_loaded_again() -> None:
    assert "alloc" not in str(distributed(ROW))


@pytest.mark.parametrize("text, order", [(COLUMN, (1, 0)), (ROW, (0, 1))])
def test_values(text: str, order: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    x = np.ascontiguousarray(rows.transpose(order))
    wanted = rows.astype(np.float64) - rows.astype(np.float64).sum(-1, keepdims=True)
    for func in (parse(text), distributed(text)):
        np.testing.assert_allclose(func.interpret(x), wanted, rtol=1e-5, atol=1e-6)
