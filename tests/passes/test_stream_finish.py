"""Results of streams with matmuls: values on the tile of the states, and no others.

The programs merge the attention of one part of the keys into that of the parts before, as a step of
ring attention does. Two heads share keys and values, so that a reshape merges heads.
"""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Func, Node, parse, verify
from stack.ir.traits import items_of
from stack.rewrite import Pipeline
from stack.rewrite.engine import Replacement, replace
from stack.target import load

HEADS, GROUPS, ROWS, KEYS = 4, 2, 160, 96
SPEC = "stream{loops=blocks},fuse,schedule,blocks,memory"

# %m, %l, %o: maximum, sum and sums of values of earlier parts; %far: hidden keys
MERGED = """func @part(%m: f32[4, 160], %l: f32[4, 160], %o: f32[4, 160, 16], %far: bool[160, 96],
    %q: f16[2, 2, 160, 16], %k: f16[2, 96, 16], %v: f16[96, 2, 16]) -> (RESULTS) at tensor {
  %d = dot(%q, %k) {rule="e f c d, e k d -> e f c k"} : f32[2, 2, 160, 96]
  %s = reshape(%d) : f32[4, 160, 96]
  %hidden = broadcast(%far) {axes=[1, 2]} : bool[4, 160, 96]
  %x = select(%hidden, -1e30:f32, %s) : f32[4, 160, 96]
  %top = reduce(%x) {axes=[2], kind="max"} : f32[4, 160]
  %tops = broadcast(%top) {axes=[0, 1]} : f32[4, 160, 96]
  %less = sub(%x, %tops) : f32[4, 160, 96]
  %p = exp(%less) : f32[4, 160, 96]
  %sum = reduce(%p) {axes=[2], kind="sum"} : f32[4, 160]
  %new = max(%m, %top) : f32[4, 160]
  %m_less = sub(%m, %new) : f32[4, 160]
  %old_share = exp(%m_less) : f32[4, 160]
  %top_less = sub(%top, %new) : f32[4, 160]
  %share = exp(%top_less) : f32[4, 160]
  %l_old = mul(%l, %old_share) : f32[4, 160]
  %l_part = mul(%sum, %share) : f32[4, 160]
  %l_new = add(%l_old, %l_part) : f32[4, 160]
  %old_shares = broadcast(%old_share) {axes=[0, 1]} : f32[4, 160, 16]
  %o_old = mul(%o, %old_shares) : f32[4, 160, 16]
  %ph = cast(%p) : f16[4, 160, 96]
  %pg = reshape(%ph) : f16[2, 2, 160, 96]
  %ov = dot(%pg, %v) {rule="e f c k, k e d -> e f c d"} : f32[2, 2, 160, 16]
  %part = reshape(%ov) : f32[4, 160, 16]
  %shares = broadcast(%share) {axes=[0, 1]} : f32[4, 160, 16]
  %o_part = mul(%part, %shares) : f32[4, 160, 16]
  %o_new = add(%o_old, %o_part) : f32[4, 160, 16]
  return RETURNED
}
"""
STATE, TABLE = "f32[4, 160]", "f32[4, 160, 16]"


def program(**results: str) -> Func:
    """The program with these results, by name and type."""
    returned = ", ".join(f"%{name}" for name in results)
    return parse(
        MERGED.replace("RESULTS", ", ".join(results.values())).replace("RETURNED", returned)
    )


def stream_of(func: Func) -> Node:
    (stream,) = (n for n in func.nodes if n.op == "stream")
    return stream


def want(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The values in double precision."""
    m, total, o, far, q, k, v = (a if a.dtype == bool else a.astype(np.float64) for a in arrays)
    x = np.einsum("efcd,ekd->efck", q, k).reshape(HEADS, ROWS, KEYS)
    x = np.where(far, -1e30, x)
    top = x.max(-1)
    p = np.exp(x - top[..., None])
    ov = np.einsum("efck,ked->efcd", p.reshape(GROUPS, -1, ROWS, KEYS), v)
    new = np.maximum(m, top)
    old, own = np.exp(m - new), np.exp(top - new)
    o_old = o * old[..., None]
    return {
        "new": new,
        "l_new": total * old + p.sum(-1) * own,
        "o_old": o_old,
        "o_new": o_old + ov.reshape(o.shape) * own[..., None],
    }


def arrays_of(func: Func, rng: np.random.Generator) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for p in func.params:
        shape = [int(str(n)) for n in p.shape]
        made = rng.standard_normal(shape)
        found.append(made > 0.5 if p.dtype.name == "bool" else made.astype(p.dtype.numpy))
    return found


def test_merged_states_are_results_of_the_stream(rng: np.random.Generator) -> None:
    """Before: a stream of the states, and kernels that merge. Expected: one stream."""
    func = program(new=STATE, l_new=STATE, o_new=TABLE)
    made = Pipeline("stream{loops=blocks}").run(func).func
    verify(made)
    assert {n.op for n in made.nodes} == {"stream", "item"}
    kernels = Pipeline(SPEC).run(func).func
    assert [n.op for n in kernels.nodes if n.op not in ("item", "reshape")] == ["kernel"]
    arrays = arrays_of(func, rng)
    expected = want(arrays)
    for ran in (made, kernels):
        for name, got in zip(("new", "l_new", "o_new"), ran.interpret(*arrays), strict=True):
            np.testing.assert_allclose(got, expected[name], rtol=2e-3, atol=2e-3)


def test_a_product_with_an_array_of_its_own_is_no_result_of_the_stream(
    rng: np.random.Generator,
) -> None:
    """The columns of `o_old` are no columns of a state: its kernel reads a state from memory."""
    func = program(new=STATE, o_old=TABLE, part=TABLE)
    made = Pipeline("stream{loops=blocks}").run(func).func
    assert func.params[2] not in stream_of(made).args
    kernels = Pipeline(SPEC).run(func).func
    found = [n for n in kernels.nodes if n.op == "kernel"]
    assert len(found) == 2
    assert not any(KEYS in t.shape for n in found for t in n.types)  # no scores in memory
    arrays = arrays_of(func, rng)
    new, o_old, _ = kernels.interpret(*arrays)
    expected = want(arrays)
    np.testing.assert_allclose(new, expected["new"], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(o_old, expected["o_old"], rtol=2e-3, atol=2e-3)


def refused(func: Func) -> Func:
    """The function after its stream's kernel was refused."""
    stream = stream_of(func)
    marked = stream.rebuilt(attrs={**stream.attrs, "refused": "no"})
    items = {n: Replacement(n.rebuilt([marked])) for n in items_of(stream, func.nodes)}
    body = replace(func.body, items)
    return Pipeline("retreat").run(Func(func.name, body, func.level)).func


def test_a_refused_stream_first_becomes_one_of_its_states(rng: np.random.Generator) -> None:
    """Its results are then computed by other kernels; only a second refusal stores the scores."""
    func = program(new=STATE, l_new=STATE, o_new=TABLE)
    once = refused(Pipeline("stream{loops=blocks}").run(func).func)
    stream = stream_of(once)
    assert not stream.blocks[2].nodes
    assert len(stream.types) == len(stream.blocks[0].results) == 3
    assert any(n.op == "fusion" for n in once.nodes)
    arrays = arrays_of(func, rng)
    expected = want(arrays)
    for name, got in zip(("new", "l_new", "o_new"), once.interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, expected[name], rtol=2e-3, atol=2e-3)
    assert not any(n.op == "stream" for n in refused(once).nodes)


# the gradient of a loss of classes: a row's sum, and probabilities that do not depend on it
GRADIENT = """func @gradient(%x: bf16[6, 40000], %log: f32[6], %class: i64[6], %weight: f32[6]) -> (
    bf16[6, 40000]RESULT) at tensor {
  %places = iota() {axis=0} : i64[40000]
  %at = broadcast(%places) {axes=[1]} : i64[6, 40000]
  %classes = broadcast(%class) {axes=[0]} : i64[6, 40000]
  %own = eq(%at, %classes) : bool[6, 40000]
  %one = select(%own, -1.0:f32, 0.0:f32) : f32[6, 40000]
  %weights = broadcast(%weight) {axes=[0]} : f32[6, 40000]
  %g = mul(%one, %weights) : f32[6, 40000]
  %sum = reduce(%g) {axes=[1], kind="sum"} : f32[6]
  %xf = cast(%x) : f32[6, 40000]
  %logs = broadcast(%log) {axes=[0]} : f32[6, 40000]
  %less = sub(%xf, %logs) : f32[6, 40000]
  %p = exp(%less) : f32[6, 40000]
  %sums = broadcast(%sum) {axes=[0]} : f32[6, 40000]
  %ps = mul(%p, %sums) : f32[6, 40000]
  %d = sub(%g, %ps) : f32[6, 40000]
  %y = cast(%d) : bf16[6, 40000]
  return %yRETURNED
}
"""


def gradient(result: str = "", returned: str = "") -> Func:
    return parse(GRADIENT.replace("RESULT", result).replace("RETURNED", returned))


def tables(func: Func) -> list[str]:
    """The types of kernels' results that are as long as the rows."""
    kernels = [n for n in Pipeline(SPEC).run(func).func.nodes if n.op == "kernel"]
    return [str(t) for n in kernels for t in n.types if t.shape[-1:] == (40000,)]


def test_rows_that_only_the_results_read_are_computed_with_them(rng: np.random.Generator) -> None:
    """Before: `p` is written in f32, and read. Expected: one kernel reads `x` and writes `y`."""
    func = gradient()
    assert tables(func) == ["bf16[6, 40000]"]
    x, log, weight = rng.integers(-64, 64, (6, 40000)) / 16, rng.random(6) + 12, rng.random(6)
    classes = rng.integers(0, 40000, 6)
    arrays = [x, log, classes, weight]
    arrays = [a.astype(p.dtype.numpy) for a, p in zip(arrays, func.params, strict=True)]
    wide = [a.astype(np.float64) for a in arrays]
    expected = np.exp(wide[0] - wide[1][:, None]) * wide[3][:, None]
    expected[np.arange(6), classes] -= wide[3]
    made = Pipeline(SPEC).run(func).func.interpret(*arrays)
    np.testing.assert_allclose(made.astype(np.float64), expected, rtol=1e-2, atol=1e-6)


def test_rows_with_another_reader_stay_in_memory() -> None:
    assert tables(gradient(", f32[6, 40000]", ", %p")) == ["f32[6, 40000]", "bf16[6, 40000]"]


# gated attention of 2 heads: values are columns of one matmul, and so are gates
GATED = """func @gated(%q: f32[2, 160, 8], %k: f32[2, 160, 8], %x: f32[160, 16], %w: f32[16, 16],
    %gate: f32[160, 16]) -> (f32[160, 16]) at tensor {
  %values = dot(%x, %w) {rule="a k, k b -> a b"} : f32[160, 16]
  %v = reshape(%values) : f32[160, 2, 8]
  %s = dot(%q, %k) {rule="a b k, a c k -> a b c"} : f32[2, 160, 160]
  %top = reduce(%s) {axes=[2], kind="max"} : f32[2, 160]
  %tops = broadcast(%top) {axes=[0, 1]} : f32[2, 160, 160]
  %less = sub(%s, %tops) : f32[2, 160, 160]
  %p = exp(%less) : f32[2, 160, 160]
  %sum = reduce(%p) {axes=[2], kind="sum"} : f32[2, 160]
  %out = dot(%p, %v) {rule="a b k, k a c -> b a c"} : f32[160, 2, 8]
  %rows = transpose(%sum) {perm=[1, 0]} : f32[160, 2]
  %sums = broadcast(%rows) {axes=[0, 1]} : f32[160, 2, 8]
  %heads = div(%out, %sums) : f32[160, 2, 8]
  %joined = reshape(%heads) : f32[160, 16]
  %y = mul(%joined, %gate) : f32[160, 16]
  return %y
}
"""


@pytest.mark.parametrize(("loops", "target"), [("blocks", "sm_90"), ("cpu", "avx2")])
def test_heads_merged_with_their_columns_are_no_result_of_the_stream(
    loops: str, target: str, rng: np.random.Generator
) -> None:
    """Before: a tile with columns at `d1 % 8`, an error. Expected: the next kernel merges them."""
    func = parse(GATED)
    made = Pipeline(f"stream{{loops={loops}}}").run(func, target=load(target)).func
    assert stream_of(made).types[-1].shape == (160, 2, 8)
    q, k, x, w, gate = arrays_of(func, rng)
    s = np.einsum("abk,ack->abc", q.astype(np.float64), k)
    p = np.exp(s - s.max(-1, keepdims=True))
    v = (x.astype(np.float64) @ w).reshape(160, 2, 8)
    expected = np.einsum("abk,kac->bac", p / p.sum(-1, keepdims=True), v).reshape(160, 16) * gate
    got = made.interpret(q, k, x, w, gate)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
