"""Streams beside reshapes that split or merge the streamed axis with another: linear attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.ir import parse
from stack.rewrite import Pipeline

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

# a product whose rows are split into heads and features, of which a softmax runs over the latter;
# its columns are pixels of an image, merged
HEAD = "func @f(%x: f32[2, 16, 8, 9], %w: f32[HD, 16], %c: f32[2, H, D, 8]) -> (f32[2, H, 8, 72])"
QUERIES = """ at tensor {
  %p = dot(%x, %w) {rule="n c a b, o c -> n o a b"} : f32[2, HD, 8, 9]
  %q = reshape(%p) : f32[2, H, D, 72]
  %m = reduce(%q) {axes=[2], kind="max"} : f32[2, H, 72]
  %mb = broadcast(%m) {axes=[0, 1, 3]} : f32[2, H, D, 72]
  %s = sub(%q, %mb) : f32[2, H, D, 72]
  %e = exp(%s) : f32[2, H, D, 72]
  %t = reduce(%e) {axes=[2], kind="sum"} : f32[2, H, 72]
  %tb = broadcast(%t) {axes=[0, 1, 3]} : f32[2, H, D, 72]
  %d = div(%e, %tb) : f32[2, H, D, 72]
  %y = dot(%c, %d) {rule="a b k m, a b k n -> a b m n"} : f32[2, H, 8, 72]
  return %y
}
"""


@pytest.mark.parametrize("loops", ["cpu", "blocks", ""])
@pytest.mark.parametrize("heads, size", [(1, 24), (2, 24), (3, 7)])
def test_queries(heads: int, size: int, loops: str, rng: np.random.Generator) -> None:
    """The same values, whether it becomes a stream or not."""
    text = (HEAD + QUERIES).replace("HD", str(heads * size)).replace("H", str(heads))
    func = parse(text.replace("D,", f"{size},"))
    made = Pipeline(f"stream{{loops={loops}}}" if loops else "stream").run(func).func
    arrays = [rng.normal(size=p.shape).astype(np.float32) for p in func.params]
    np.testing.assert_allclose(
        made.interpret(*arrays), func.interpret(*arrays), rtol=2e-5, atol=2e-5
    )


def attention(heads: int, memory: bool) -> Any:
    """Linear attention over an image: softmax of queries over features, of keys over places."""

    def f(x, w, out, mk, mv):
        n, _, rows, columns = x.shape
        q, k, v = torch.nn.functional.conv2d(x, w).chunk(3, 1)
        q, k, v = (t.reshape(n, heads, -1, rows * columns) for t in (q, k, v))
        if memory:
            k = torch.cat((mk.expand(n, -1, -1, -1), k), -1)
            v = torch.cat((mv.expand(n, -1, -1, -1), v), -1)
        q, k = q.softmax(-2) / q.shape[2] ** 0.5, k.softmax(-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        made = torch.einsum("bhde,bhdn->bhen", context, q)
        return torch.nn.functional.conv2d(made.reshape(n, -1, rows, columns), out)

    return f


@pytest.mark.parametrize("heads, size, memory", [(1, 32, False), (2, 24, True), (4, 8, False)])
def test_attention(heads: int, size: int, memory: bool) -> None:
    g = torch.Generator().manual_seed(0)
    shapes = [
        (2, 16, 16, 17), (3 * heads * size, 16, 1, 1), (16, heads * size, 1, 1),
        (heads, size, 4), (heads, size, 4),
    ]  # fmt: skip
    args = [torch.randn(s, generator=g) for s in shapes]
    f = attention(heads, memory)
    want, own = f(*(a.double() for a in args)), f(*args)
    got = stack.compile(f, *args)(*args)
    assert (got - want).abs().max() <= max(2 * (own - want).abs().max(), 1e-5 * want.abs().max())
