"""Arrays in shared memory: those that are never needed together share bytes."""

from __future__ import annotations

from stack.backends.cuda.shared import bytes_of, offsets, regions, roots_of
from stack.ir import Builder, Node, TensorType, parse, tensor
from stack.ir.types import F32

# a before b, c from before both to after both
PROGRAM = """
func @main(%x: f32[64]) -> (f32[64]) at tensor {
  %k = kernel(%x) {level="loop", name="k", warps=1} : f32[64]
  {(%p: f32[64] in global, %o: f32[64] in global)
    %loop = loop(%o) {kind="grid"} : f32[64] in global {(%i < 1, %o0: f32[64] in global)
      %a = alloc(%i) {name="a"} : f32[64] in shared
      %b = alloc(%i) {name="b"} : f32[64] in shared
      %c = alloc(%i) {name="c"} : f32[32] in shared
      %v = load(%p, %i) : f32[]
      %c1 = store(%c, %v, %i) : f32[32] in shared
      %first = load(%c1, 0:i64) : f32[]
      %a1 = store(%a, %first, %i) : f32[64] in shared
      %w = load(%a1, %i) : f32[]
      %b1 = store(%b, %w, %i) : f32[64] in shared
      %y = load(%b1, %i) : f32[]
      %last = load(%c1, 1:i64) : f32[]
      %s = add(%y, %last) : f32[]
      %t = store(%o0, %s, %i) : f32[64] in global
      return %t
    }
    return %loop
  }
  return %k
}
"""


def test_arrays_share_bytes_one_after_the_other() -> None:
    block = parse(PROGRAM).nodes[0].blocks[0]
    roots = roots_of(block)
    (loop,) = (n for n in block.nodes if n.op == "loop")
    statements = loop.blocks[0].nodes
    allocs = [n for n in statements if n.op == "alloc"]
    placed = offsets(allocs, statements, roots)
    at = {str(n.attrs["name"]): start for n, start in placed.items()}
    assert at == {"a": 0, "b": 0, "c": 256}
    names = {a.attrs["name"]: other.attrs["name"] for a, other in regions(placed).items()}
    assert names == {"a": "a", "b": "a", "c": "c"}


def test_arrays_begin_at_128_bytes() -> None:
    b = Builder()
    index = Node("var", (), {"name": "i", "extent": 2}, tensor("i64"))
    assert bytes_of(b.alloc(index, name="a", type=TensorType(F32, (3,), "shared"))) == 128
    assert bytes_of(b.alloc(index, name="b", type=TensorType(F32, (33,), "shared"))) == 256
