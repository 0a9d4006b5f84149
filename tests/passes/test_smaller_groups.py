"""Groups that no kernel of blocks computes whole are split, and never streamed."""

from __future__ import annotations

import numpy as np

from stack.ir import Func, parse
from stack.rewrite import Pipeline

SPEC = "stream{loops=blocks},fuse,coalesce,schedule,blocks,library"

# the windows of a patch embedding: three axes are summed
PATCHES = """func @f(%x: f32[2, 3, 4, 4, 4, 4], %w: f32[8, 3, 4, 4], %b: f32[8]) -> (
    f32[2, 4, 4, 8]) at tensor {
  %d = dot(%x, %w) {rule="n c p s q t, o c s t -> n p q o"} : f32[2, 4, 4, 8]
  %r = broadcast(%b) {axes=[3]} : f32[2, 4, 4, 8]
  %a = add(%d, %r) : f32[2, 4, 4, 8]
  %y = exp(%a) : f32[2, 4, 4, 8]
  return %y
}
"""

# a perceptron across patches, which lie in two axes that are not neighbours
ACROSS = """func @f(%x: bf16[64, 14, 768, 14], %w: bf16[384, 14, 14], %v: bf16[196, 384]) -> (
    f32[64, 768, 196]) at tensor {
  %d = dot(%x, %w) {rule="a b d c, k b c -> a d k"} : f32[64, 768, 384]
  %e = exp(%d) : f32[64, 768, 384]
  %c = cast(%e) : bf16[64, 768, 384]
  %y = dot(%c, %v) {rule="a d k, o k -> a d o"} : f32[64, 768, 196]
  return %y
}
"""


def kinds(func: Func) -> list[str]:
    return [str(n.attrs.get("kind", n.op)) for n in func.nodes if n.op in ("kernel", "fusion")]


def test_a_product_goes_to_a_library_and_what_follows_it_does_not(
    rng: np.random.Generator,
) -> None:
    source = parse(PATCHES)
    func = Pipeline(SPEC).run(source).func
    assert kinds(func) == ["library", "kernel"]
    (library,) = (n for n in func.nodes if n.op == "fusion")
    assert [n.op for n in library.blocks[0].nodes] == ["dot"]
    arrays = [rng.standard_normal([int(s) for s in p.shape], np.float32) for p in source.params]
    np.testing.assert_allclose(func.interpret(*arrays), source.interpret(*arrays), rtol=1e-4)


def test_no_stream_where_no_loop_computes_it() -> None:
    found = Pipeline("stream{loops=blocks}").run(parse(ACROSS))
    assert not any(n.op == "stream" for n in found.func.nodes)
    notes = [note for record in found.records for note in record.notes]
    assert any("is not streamed: a dot over several axes" in note for note in notes)
    neighbours = ACROSS.replace("768, 14]", "14, 768]").replace("a b d c,", "a b c d,")
    assert any(
        n.op == "stream" for n in Pipeline("stream{loops=blocks}").run(parse(neighbours)).func.nodes
    )
    steps = [n for n in Pipeline(SPEC).run(parse(ACROSS)).func.nodes if "kind" in n.attrs]
    assert not any(n.op == "stream" for step in steps for n in step.blocks[0].nodes)


# the sum of two columns, and a product of the values in these columns
COLUMNS = """func @f(%p: f32[20], %q: f32[20]) -> (f32[20], f32[20]) at tensor {
  %f = fusion(%p, %q) {kind="reduction", name="columns"} : (f32[20], f32[20])
    {(%p0: f32[20], %p1: f32[20])
    %s = sub(%p0, %p1) : f32[20]
    %t = add(%p0, %p1) : f32[20]
    %a = reshape(%s) : f32[20, 1]
    %b = reshape(%t) : f32[20, 1]
    %c = concat(%a, %b) {axis=1} : f32[20, 2]
    %r = reduce(%c) {axes=[1], kind="sum"} : f32[20]
    %m = mul(%s, %t) : f32[20]
    return %r, %m
  }
  %r = item(%f) {index=0} : f32[20]
  %m = item(%f) {index=1} : f32[20]
  return %r, %m
}
"""
STEPS = 'kind="reduction", name="columns", schedule="vectorize i"'


def test_a_cpu_splits_a_group_without_a_kernel(rng: np.random.Generator) -> None:
    """A library computed all of its ops one by one."""
    source = parse(COLUMNS)
    result = Pipeline("tile,library").run(source, verbose=True)
    assert set(kinds(result.func)) == {"kernel"}
    notes = [str(note) for record in result.records for note in record.notes]
    assert any("becomes smaller groups: its outputs do not share" in note for note in notes)
    arrays = [rng.standard_normal(20, np.float32) for _ in source.params]
    for got, want in zip(result.func.interpret(*arrays), source.interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_cpu_keeps_a_group_with_a_kernel_whole() -> None:
    whole = COLUMNS.replace("mul(%s, %t) : f32[20]", "exp(%r) : f32[20]")
    func = Pipeline("tile,library").run(parse(whole)).func
    assert kinds(func) == ["kernel"]


def test_steps_by_hand_keep_a_group_whole() -> None:
    by_hand = COLUMNS.replace('kind="reduction", name="columns"', STEPS)
    assert kinds(Pipeline("tile,library").run(parse(by_hand)).func) == ["kernel"]
