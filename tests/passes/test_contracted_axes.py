"""Attention over interleaved halves: two contracted axes that are neighbours in memory are one."""

from __future__ import annotations

import numpy as np
import pytest

from stack.backends.cuda import BACKEND as CUDA
from stack.backends.triton import BACKEND as TRITON
from stack.ir import parse, verify
from stack.ir.data import round_bf16
from stack.passes.tiling.contraction import contracted_sizes
from stack.rewrite import Pipeline
from stack.run.backend import Backend
from stack.target import as_gpu

ATTENTION = """func @main(%q: bf16[3, 64, 16, 2], %k: bf16[3, 128, 16, 2], %v: bf16[3, 128, 32],
                          %seen: i64[128]) -> (f32[3, 64, 32]) at tensor {
  %s = dot(%q, %k) {rule="h m d e, h n d e -> h m n"} : f32[3, 64, 128]
  %i = iota() {axis=0} : i64[128]
  %g = gather(%seen, %i) {rule="a!, n -> n"} : i64[128]
  %t = gt(%g, 0:i64) : bool[128]
  %b = broadcast(%t) {axes=[2]} : bool[3, 64, 128]
  %x = select(%b, %s, -inf:f32) : f32[3, 64, 128]
  %m = reduce(%x) {axes=[2], kind="max"} : f32[3, 64]
  %mb = broadcast(%m) {axes=[0, 1]} : f32[3, 64, 128]
  %d = sub(%x, %mb) : f32[3, 64, 128]
  %e = exp(%d) : f32[3, 64, 128]
  %l = reduce(%e) {axes=[2], kind="sum"} : f32[3, 64]
  %w = cast(%v) : f32[3, 128, 32]
  %o = dot(%e, %w) {rule="h m n, h n c -> h m c"} : f32[3, 64, 32]
  %lb = broadcast(%l) {axes=[0, 1]} : f32[3, 64, 32]
  %y = div(%o, %lb) : f32[3, 64, 32]
  return %y
}
"""
STREAM = "canonicalize,stream{min_axis=64,loops=blocks},fuse,coalesce"


def test_a_stream_contracts_one_axis() -> None:
    made = Pipeline(STREAM).run(parse(ATTENTION), target=as_gpu(None)).func
    (stream,) = [n for n in made.nodes if n.op == "stream"]
    shapes = [p.type for p in stream.blocks[0].params if p.dtype.name == "bf16"]
    assert [t.shape[-1] for t in shapes] == [32, 32, 32]


@pytest.mark.parametrize("backend", [TRITON, CUDA], ids=lambda b: b.name)
def test_its_values(backend: Backend, rng: np.random.Generator) -> None:
    q, k, v = (round_bf16(rng.standard_normal(s).astype(np.float32))
               for s in ((3, 64, 16, 2), (3, 128, 16, 2), (3, 128, 32)))  # fmt: skip
    seen = rng.integers(0, 2, 128)
    func = parse(ATTENTION)
    for _, spec in backend.lowering.stages:
        func = Pipeline(spec).run(func, target=as_gpu(None)).func
        verify(func)
    found = np.asarray(func.interpret(q, k, v, seen))
    score = np.einsum("hmde,hnde->hmn", q.astype(np.float64), k.astype(np.float64))
    score = np.where(seen > 0, score, -np.inf)
    share = np.exp(score - score.max(2, keepdims=True))
    want = share / share.sum(2, keepdims=True) @ v.astype(np.float64)
    np.testing.assert_allclose(found, want, rtol=2e-2, atol=2e-2)


CASES: dict[str, tuple[str, str, str, list[int]]] = {
    # name: the operand as a view of %p: f32[1, 7, 4, 2], the other operand, the rule, the sizes
    "a unit axis goes": ("reshape(%p) : f32[7, 4, 2]", "3, 4, 2", "m d e, n d e -> m n", [8]),
    "transposed in memory": (
        "transpose(%p) {perm=[0, 1, 3, 2]} : f32[1, 7, 2, 4]", "3, 2, 4",
        "b m e d, n e d -> b m n", [2, 4],
    ),
    "other axes move": (
        "transpose(%p) {perm=[1, 0, 2, 3]} : f32[7, 1, 4, 2]", "3, 4, 2",
        "m b d e, n d e -> b m n", [8],
    ),
    "another order": ("reshape(%p) : f32[7, 4, 2]", "3, 2, 4", "m d e, n e d -> m n", [4, 2]),
    "it splits an axis": (
        "reshape(%p) : f32[7, 2, 2, 2]", "3, 2, 2, 2", "m a b c, n a b c -> m n", [2, 2, 2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_which_axes_are_one(name: str) -> None:
    view, other, rule, sizes = CASES[name]
    kind = "f32[1, 7, 3]" if "b m n" in rule else "f32[7, 3]"
    func = parse(
        f"func @main(%p: f32[1, 7, 4, 2], %w: f32[{other}]) -> ({kind}) at tensor {{\n"
        f'  %x = {view}\n  %y = dot(%x, %w) {{rule="{rule}"}} : {kind}\n  return %y\n}}\n'
    )
    (dot,) = [n for n in func.nodes if n.op == "dot"]
    assert contracted_sizes(dot) == sizes
