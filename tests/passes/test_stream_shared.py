"""stream: a table that goes into reductions over both of its axes, as in gradients of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stream_harness import check_tiles, prepared, streamed, streams

import stack
from stack.ir import Func, parse

M, K = 40, 37
PARAMS = f"%q: f32[{M}, 8], %k: f32[{K}, 8], %v: f32[{K}, 4], %g: f32[{M}, 4], %r: f32[{M}]"
SCORES = f"""%x = dot(%q, %k) {{rule="m d, k d -> m k"}} : f32[{M}, {K}]
%b = broadcast(%r) {{axes=[0]}} : f32[{M}, {K}]
%y = sub(%x, %b) : f32[{M}, {K}]
%p = exp(%y) : f32[{M}, {K}]
"""
OTHER = f"""%h = dot(%g, %v) {{rule="m n, k n -> m k"}} : f32[{M}, {K}]
%t = mul(%p, %h) : f32[{M}, {K}]
"""
CENTRED = (
    OTHER
    + f"""%s = reduce(%t) {{axes=[1], kind="sum"}} : f32[{M}]
%c = broadcast(%s) {{axes=[0]}} : f32[{M}, {K}]
%w = mul(%p, %c) : f32[{M}, {K}]
%u = sub(%t, %w) : f32[{M}, {K}]
"""
)
LARGEST = '%z = reduce(%x) {axes=[0, 1], kind="max"} : f32[]\n'


EXPECTED = """\
func @main(%q: f32[40, 8], %k: f32[37, 8], %v: f32[37, 4], %g: f32[40, 4], %r: f32[40]) \
-> (f32[40, 8], f32[37, 8]) at tensor {
  %dq = stream(%q, %k, %r) {name="dot"} : f32[40, 8] \
{(%p0: f32[40, 8], %p1: f32[37, 8], %p2: f32[40])
    %x = dot(%p0, %p1) {rule="a b, k b -> a k"} : f32[40, 37]
    %b = broadcast(%p2) {axes=[0]} : f32[40, 37]
    %y = sub(%x, %b) : f32[40, 37]
    %p = exp(%y) : f32[40, 37]
    %dq = dot(%p, %p1) {rule="a k, k b -> a b"} : f32[40, 8]
    return %dq
  } {(%old0: f32[40, 8], %new0: f32[40, 8])
    return %old0
  } {(%s0: f32[40, 8], %p0: f32[40, 8], %p1: f32[37, 8], %p2: f32[40])
    return %s0
  }
  %dk = stream(%q, %k, %r) {name="dot"} : f32[37, 8] \
{(%p0: f32[40, 8], %p1: f32[37, 8], %p2: f32[40])
    %x = dot(%p0, %p1) {rule="k a, b a -> k b"} : f32[40, 37]
    %b = broadcast(%p2) {axes=[0]} : f32[40, 37]
    %y = sub(%x, %b) : f32[40, 37]
    %p = exp(%y) : f32[40, 37]
    %dk = dot(%p, %p0) {rule="k a, k b -> a b"} : f32[37, 8]
    return %dk
  } {(%old0: f32[37, 8], %new0: f32[37, 8])
    return %old0
  } {(%s0: f32[37, 8], %p0: f32[40, 8], %p1: f32[37, 8], %p2: f32[40])
    return %s0
  }
  return %dq, %dk
}
"""


def products(table: str, other: str = "%p") -> str:
    return f"""%dq = dot({table}, %k) {{rule="m k, k d -> m d"}} : f32[{M}, 8]
%dk = dot({table}, %q) {{rule="m k, m d -> k d"}} : f32[{K}, 8]
%dv = dot({other}, %g) {{rule="m k, m n -> k n"}} : f32[{K}, 4]
"""


TYPES = {
    "%dq": f"f32[{M}, 8]", "%dk": f"f32[{K}, 8]", "%dv": f"f32[{K}, 4]", "%x": f"f32[{M}, {K}]",
    "%z": "f32[]",
}  # fmt: skip


def program(body: str, results: tuple[str, ...] = ("%dq", "%dk", "%dv")) -> Func:
    kinds = ", ".join(TYPES[r] for r in results)
    lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
    head = f"func @main({PARAMS}) -> ({kinds}) at tensor"
    return parse(f"{head} {{\n{lines}  return {', '.join(results)}\n}}\n")


def arrays(rng: np.random.Generator) -> list[np.ndarray]:
    shapes = ((M, 8), (K, 8), (K, 4), (M, 4), (M,))
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def reference(given: list[np.ndarray], centred: bool) -> list[np.ndarray]:
    q, k, v, g, r = (a.astype(np.float64) for a in given)
    p = np.exp(q @ k.T - r[:, None])
    t = p * (g @ v.T)
    if centred:
        t -= p * t.sum(1, keepdims=True)
    return [t @ k, t.T @ q, p.T @ g]


@pytest.mark.parametrize("centred", [False, True])
def test_one_pass_over_each_axis(centred: bool, rng: np.random.Generator) -> None:
    body = SCORES + (CENTRED + products("%u") if centred else OTHER + products("%t"))
    made, notes = streamed(program(body), "balance=100")
    assert len(streams(made)) == 2, notes
    assert not any(n.op == "dot" for n in made.nodes)
    assert sorted(len(s.blocks[0].results) for s in streams(made)) == (
        [2, 3] if centred else [1, 2]
    )
    given = arrays(rng)
    check_tiles(made, given, reference(given, centred), 2e-5)


def test_each_pass_computes_the_table(rng: np.random.Generator) -> None:
    """Before and after, without the second table."""
    made, _ = streamed(program(SCORES + products("%p"), ("%dq", "%dk")), "balance=100")
    assert str(made) == EXPECTED


def test_a_table_that_only_the_first_stream_reads(rng: np.random.Generator) -> None:
    """%h leaves the block with the stream of %dq, before those over the other axis are built."""
    dq, dk, dv = products("%t").splitlines()
    body = SCORES + "\n".join((dk.replace("%t", "%p"), dv, OTHER + dq))
    made, notes = streamed(program(body, ("%dk", "%dv", "%dq")), "balance=100")
    assert sorted(len(s.blocks[0].results) for s in streams(made)) == [1, 2], notes
    given = arrays(rng)
    q, k, v, g, r = (a.astype(np.float64) for a in given)
    p = np.exp(q @ k.T - r[:, None])
    check_tiles(made, given, [p.T @ q, p.T @ g, (p * (g @ v.T)) @ k], 2e-5)


@pytest.mark.parametrize(
    ("tail", "results"),
    [("", ("%dq", "%dk", "%dv", "%x")), (LARGEST, ("%dq", "%dk", "%dv", "%z"))],
    ids=["the table is a result", "its largest element"],
)
def test_a_table_that_memory_holds_anyway(tail: str, results: tuple[str, ...]) -> None:
    before = program(SCORES + OTHER + products("%t") + tail, results)
    made, notes = streamed(before, "balance=100")
    assert any(n.op == "dot" and n.shape == (M, K) for n in made.nodes)
    assert any("%x end in ops no stream computes" in n or "%h, %x end" in n for n in notes), notes


def test_flops_against_bytes() -> None:
    """24 flops for an element and pass, against two tables written once and read twice."""
    before = program(SCORES + OTHER + products("%t"))
    made, notes = streamed(before, "balance=0.9")
    assert not streams(made)
    assert any("costs more than memory" in n for n in notes)
    assert len(streams(streamed(before, "balance=1.1")[0])) == 2
    assert streamed(before, "balance=0")[0] is before


def test_axes_longer_than_a_running_value_is_wide() -> None:
    """Held tables would make running values of 290 columns; computed ones leave 8."""
    body = SCORES + OTHER + products("%t")
    text = str(program(body)).replace(str(M), "310").replace(str(K), "290")
    made, _ = streamed(parse(text), "balance=100")
    assert len(streams(made)) == 2


def test_parts_of_an_array_are_read_where_they_lie(rng: np.random.Generator) -> None:
    """q and k are columns of one array; v is on its own."""
    body = f"""%q = slice(%w) {{start=[0, 0], limit=[{M}, 8], step=[1, 1]}} : f32[{M}, 8]
%k = slice(%w) {{start=[0, 8], limit=[{M}, 16], step=[1, 1]}} : f32[{M}, 8]
%x = dot(%q, %k) {{rule="m d, n d -> m n"}} : f32[{M}, {M}]
%p = exp(%x) : f32[{M}, {M}]
%z = dot(%p, %v) {{rule="m n, n e -> m e"}} : f32[{M}, 4]
"""
    lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
    before = parse(
        f"func @main(%w: f32[{M}, 16], %v: f32[{M}, 4]) -> (f32[{M}, 4]) at tensor"
        f" {{\n{lines}  return %z\n}}\n"
    )
    made, notes = streamed(before)
    (stream,) = made.nodes
    assert stream.args == made.params, notes
    w, v = (rng.standard_normal(s).astype(np.float32) for s in ((M, 16), (M, 4)))
    exact = np.exp(w[:, :8].astype(np.float64) @ w[:, 8:].T) @ v
    check_tiles(made, [w, v], [exact], 2e-5)


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_read_transposed_is_written_so(alone: bool, rng: np.random.Generator) -> None:
    """Through the merge of two axes; but not where something else reads the result as it is."""
    other = "%a" if alone else "%z"
    text = f"""func @main(%q: f32[3, {M}, 8], %k: f32[3, {K}, 8]) -> (f32[{K}, 24], f32[3, 8, {K}])
    at tensor {{
      %x = dot(%q, %k) {{rule="h m d, h n d -> h m n"}} : f32[3, {M}, {K}]
      %p = exp(%x) : f32[3, {M}, {K}]
      %z = dot(%p, %q) {{rule="h m n, h m d -> h d n"}} : f32[3, 8, {K}]
      %r = reshape(%z) : f32[24, {K}]
      %t = transpose(%r) {{perm=[1, 0]}} : f32[{K}, 24]
      %a = transpose(%k) {{perm=[0, 2, 1]}} : f32[3, 8, {K}]
      return %t, {other}
    }}"""
    made, notes = streamed(parse(text))
    (stream,) = streams(made)
    assert stream.shape == ((K, 3, 8) if alone else (3, 8, K)), notes
    q, k = (rng.standard_normal((3, n, 8)).astype(np.float32) for n in (M, K))
    p = np.exp(q.astype(np.float64) @ k.transpose(0, 2, 1))
    z = np.einsum("hmn,hmd->hdn", p, q)
    want = [z.reshape(24, K).T, k.transpose(0, 2, 1) if alone else z]
    check_tiles(made, [q, k], want, 2e-5)


def test_a_gradient_in_one_graph_with_what_it_is_of(rng: np.random.Generator) -> None:
    """jax.grad: the pass forward, one for q, one for k and v; no table of 40 x 40 in memory."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def loss(q: Any, k: Any, v: Any) -> Any:
        line = jnp.arange(M)
        scores = jnp.where(line[:, None] >= line, q @ k.T, -jnp.inf)
        return jnp.sum(jnp.tanh(jax.nn.softmax(scores, -1) @ v))

    given = [rng.standard_normal((M, n)).astype(np.float32) for n in (8, 8, 4)]
    func = prepared(stack.trace(jax.grad(loss, argnums=(0, 1, 2)), *given, frontend="jax"))
    made, notes = streamed(func, "min_axis=32769,balance=100")
    assert len(streams(made)) == 3, notes
    assert not any(n.op == "dot" and n.shape == (M, M) for n in made.nodes)
    q, k, v = (a.astype(np.float64) for a in given)
    scores = np.where(np.tri(M, dtype=bool), q @ k.T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    g = 1 - np.tanh(p @ v) ** 2
    d = p * (g @ v.T - (p * (g @ v.T)).sum(1, keepdims=True))
    check_tiles(made, given, [d @ k, d.T @ q, p.T @ g], 1e-4)
