"""Contents of a tile of a row-wise kernel on a GPU: joined parts, and indices of gathered rows."""

from __future__ import annotations

import pytest

from stack.ir import parse
from stack.passes.policies.lowerings import lowering_of
from stack.schedule import Schedule
from stack.target import as_gpu

GPU = as_gpu(None)


def schedule_of(text: str) -> Schedule:
    """The schedule of the only group of a function."""
    (group,) = (n for n in parse(text).nodes if n.op == "fusion")
    return lowering_of(group, GPU).schedule


def joined(count: int, dtype: str) -> str:
    """Parts of 64 columns side by side."""
    ns = range(count)
    params = ", ".join(f"%x{i}: {dtype}[8192, 64]" for i in ns)
    own = ", ".join(f"%p{i}: {dtype}[8192, 64]" for i in ns)
    given, parts = (", ".join(f"%{c}{i}" for i in ns) for c in "xp")
    made = f"{dtype}[8192, {64 * count}]"
    return f"""func @f({params}) -> ({made}) at tensor {{
  %y = fusion({given}) {{kind="loop", name="join"}} : {made} {{({own})
    %c = concat({parts}) {{axis=1}} : {made}
    return %c
  }}
  return %y
}}
"""


@pytest.mark.parametrize(("dtype", "warps"), [("bf16", 2), ("f32", 4), ("f64", 8)])
def test_elements_of_16_bits_take_half_of_a_register(dtype: str, warps: int) -> None:
    """More warps than hold the arrays only repeat the tests of the parts."""
    assert schedule_of(joined(27, dtype)).warps == warps


BAG = """func @f(%t: bf16[100000, 64], %i: INDEX[8192, 4]) -> (f32[8192, 64]) at tensor {
  %y = fusion(%t, %i) {kind="reduction", name="bag"} : f32[8192, 64] \
{(%p0: bf16[100000, 64], %p1: INDEX[8192, 4])
    %g = gather(%p0, %p1) {rule="v! d, i0 i1 -> i0 i1 d"} : bf16[8192, 4, 64]
    %c = cast(%g) : f32[8192, 4, 64]
    %r = reduce(%c) {axes=[1], kind="sum"} : f32[8192, 64]
    return %r
  }
  return %y
}
"""


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_indices_have_no_columns(index: str) -> None:
    """A thread has 16 bytes of a row of the table, whatever the type of the indices is."""
    assert schedule_of(BAG.replace("INDEX", index)).warps == 1
