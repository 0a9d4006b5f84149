"""Scores of attention never need memory: not between segments, and not in simulations."""

from __future__ import annotations

import pytest

from stack.hosted import find
from stack.hosted.nodes import custom
from stack.ir import Builder, Func, Node, param, tensor
from stack.mesh.meshes import parse_mesh
from stack.mesh.ops import is_meeting
from stack.passes.sharding.strategies.stages import stages_of
from stack.rewrite.stream_candidates import streamed
from stack.sim import machine, simulate
from stack.sim.costs import compute_seconds, stored_bytes
from stack.sim.segments import Segment, steps_of
from stack.sim.stream_kernels import kernels_of
from stack.sim.stream_order import in_stream_order

T, D = 4096, 64
WEIGHTS = (("v", (D, D)), ("w", (D, D)))
H200 = machine("h200")


def attention(masked: bool = False, again: bool = False) -> Func:
    """Softmax of scores times values; `again`: scores are read once more, behind a sum of ranks."""
    b = Builder()
    q, k, v = (param(name, tensor("bf16", T, D)) for name in "qkv")
    s = b.dot(q, k, rule="m d, n d -> m n", type=tensor("f32", T, T))
    if masked:
        rows, columns = (b.iota(axis=i, type=tensor("i64", T, T)) for i in (0, 1))
        s = b.select(b.ge(rows, columns), s, b.const(float("-inf"), "f32"))
    top = b.broadcast(b.reduce(s, kind="max", axes=(1,)), axes=(0,), type=s.type)
    e = b.exp(b.sub(s, top))
    p = b.div(e, b.broadcast(b.reduce(e, kind="sum", axes=(1,)), axes=(0,), type=s.type))
    p = b.cast(p, type=tensor("bf16", T, T))
    made: Node = b.dot(p, v, rule="m n, n d -> m d")
    if again:
        total = b.all_reduce(made, kind="sum", mesh="tp=2", over="tp")
        made = b.dot(p, total, rule="m n, m d -> n d")
    return b.func("f", [q, k, v], [made])


def test_scores_are_streamed_where_that_costs_less() -> None:
    func = attention()
    found = streamed(func.nodes, func.results, H200.stream_balance)
    assert {n.shape for n in found} == {(T, T)}
    assert not streamed(func.nodes, func.results, 0.0)
    assert not streamed(func.nodes, func.results, 1.0)  # operations cost more than bytes
    kept = [*func.results, next(n for n in func.nodes if n.op == "exp")]
    assert not streamed(func.nodes, kept, H200.stream_balance)


@pytest.mark.parametrize("balance", [0.0, 150.0])
def test_scores_are_not_handed_on(balance: float) -> None:
    """The segment behind the sum computes them again, with the same results."""
    func = attention(again=True)
    works = [step.work for step in steps_of(func, balance=balance)]
    segments = [w for w in works if isinstance(w, Segment)]
    handed = {n.shape for w in segments for n in w.inputs}
    assert ((T, T) in handed) == (not balance)
    dots = [n for w in segments for n in w.func.nodes if n.op == "dot"]
    assert len(dots) == (4 if balance else 3)
    assert any(is_meeting(n) for w in works if not isinstance(w, Segment) for n in w.nodes)


def test_scores_take_no_memory_in_what_is_expected() -> None:
    func = attention()
    assert stored_bytes(func, H200) < 4 * T * T // 8
    mesh = parse_mesh("tp=2")
    again = attention(again=True)
    found = simulate(again, mesh, H200)
    assert found.peak <= found.allocated < 4 * T * T // 8


def test_what_a_mask_hides_is_not_computed() -> None:
    whole, half = (compute_seconds(attention(masked), H200) for masked in (False, True))
    assert 0.4 < half / whole < 0.75


@pytest.mark.parametrize("view", ["", "transpose", "reshape"])
def test_kernels_that_sum_over_other_axes_compute_the_table_again(view: str) -> None:
    """Sums over columns share a kernel; the sum over rows has one, also behind a view."""
    b = Builder()
    q, k = (param(name, tensor("bf16", T, D)) for name in "qk")
    s = b.dot(q, k, rule="m d, n d -> m n")
    top = b.reduce(s, kind="max", axes=(1,))
    over_columns = b.dot(s, k, rule="m n, n d -> m d")
    table, rule = s, "m n, m d -> n d"
    if view == "transpose":
        table, rule = b.transpose(s, perm=(1, 0)), "n m, m d -> n d"
    elif view == "reshape":
        table = b.reshape(s, type=tensor("bf16", 1, T, T))
        rule = "a m n, m d -> a n d"
    over_rows = b.dot(table, q, rule=rule)

    def count(*results: Node) -> int:
        func = b.func("f", [q, k], results)
        inner = streamed(func.nodes, func.results, H200.stream_balance)
        return kernels_of(func.nodes, inner)[s]

    assert count(top, over_columns) == count(over_rows) == 1
    assert count(top, over_columns, over_rows) == 2


def test_stages_hand_on_no_scores() -> None:
    """A stage computes the scores of its layer again for the gradients that pass through it."""
    func = trained()
    held = {balance: handed(func, balance) for balance in (0.0, H200.stream_balance)}
    assert any(shape[-2:] == (T, T) for shape in held[0.0])
    assert not any(shape[-2:] == (T, T) for shape in held[H200.stream_balance])


def handed(func: Func, balance: float) -> set[tuple[object, ...]]:
    """Shapes of what parts of two stages read of each other."""
    parts = stages_of(func, 2, balance=balance).parts
    made = {name for part in parts.values() for name in part.makes}
    return {
        p.shape
        for part in parts.values()
        for name, p in zip(part.reads, part.func.params, strict=True)
        if name in made
    }


def trained() -> Func:
    """Two layers of attention without heads, as a sum, and the gradient of a weight of each."""
    b = Builder()
    x, *weights = (param(n, tensor("bf16", *s)) for n, s in (("x", (T, D)), *WEIGHTS))
    h, kept = x, list[tuple[Node, Node, Node]]()
    for w in weights:
        q = b.dot(h, w, rule="m d, d e -> m e")
        s = b.dot(q, h, rule="m d, n d -> m n", type=tensor("f32", T, T))
        top = b.broadcast(b.reduce(s, kind="max", axes=(1,)), axes=(0,), type=s.type)
        p = b.cast(b.exp(b.sub(s, top)), type=tensor("bf16", T, T))
        kept.append((h, p, w))
        h = b.add(h, b.dot(p, h, rule="m n, n d -> m d"))
    loss = b.reduce(h, kind="sum", axes=(0, 1))
    back = b.mul(h, b.broadcast(loss, axes=(), type=h.type))
    found: list[Node] = []
    for h, p, w in reversed(kept):
        t = b.dot(back, h, rule="m d, n d -> m n", type=tensor("f32", T, T))
        t = b.cast(b.mul(t, b.cast(p, type=t.type)), type=p.type)
        back_q = b.dot(t, h, rule="m n, n d -> m d")
        found.append(b.dot(h, back_q, rule="m d, m e -> d e"))
        back = b.add(back, b.dot(back_q, w, rule="m e, d e -> m d"))
    return b.func("f", [x, *weights], [loss, *found])


def late_values() -> Func:
    """Attention whose values arrive from other ranks when the scores are known, and the gradients
    of its operands, each summed over ranks as soon as it is there.
    """
    b = Builder()
    q, k, v, g = (param(name, tensor("bf16", T, D)) for name in ("q", "k", "v", "g"))

    def summed(x: Node) -> Node:
        return b.all_reduce(x, kind="sum", mesh="tp=2", over="tp")

    s = b.dot(q, summed(k), rule="m d, n d -> m n", type=tensor("f32", T, T))
    top = b.broadcast(b.reduce(s, kind="max", axes=(1,)), axes=(0,), type=s.type)
    e = b.exp(b.sub(s, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(1,)), axes=(0,), type=s.type)
    p = b.div(e, total)
    low = b.cast(p, type=tensor("bf16", T, T))
    values = summed(b.mul(v, v))
    made = summed(b.dot(low, values, rule="m n, n d -> m d"))
    back = b.mul(made, g)
    dv = summed(b.dot(low, back, rule="m n, m d -> n d"))
    dp = b.dot(back, values, rule="m d, n d -> m n", type=tensor("f32", T, T))
    product = b.mul(b.cast(made, type=tensor("f32", T, D)), b.cast(back, type=tensor("f32", T, D)))
    delta = b.broadcast(summed(b.reduce(product, kind="sum", axes=(1,))), axes=(0,), type=s.type)
    ds = b.cast(b.mul(p, b.sub(dp, delta)), type=tensor("bf16", T, T))
    dk = summed(b.dot(ds, q, rule="m n, m d -> n d"))
    dq = b.dot(ds, k, rule="m n, n d -> m d")
    return b.func("f", [q, k, v, g], [made, dq, dk, dv])


def test_a_stream_is_in_one_segment() -> None:
    """Maxima and sums wait for the values, and the gradient of the values for the other two."""
    func = late_values()
    works = [step.work for step in steps_of(func, 1, balance=H200.stream_balance)]
    wide = [
        [n.op for n in w.func.nodes if n.op in ("reduce", "dot")]
        for w in works
        if isinstance(w, Segment) and any(n.shape == (T, T) for n in w.func.nodes)
    ]
    assert [sorted(ops) for ops in wide] == [["dot"] * 2 + ["reduce"] * 2, ["dot"] * 5]


def test_without_streams_nothing_waits() -> None:
    works = [step.work for step in steps_of(late_values(), 1)]
    wide = [
        w for w in works if isinstance(w, Segment) and any(n.shape == (T, T) for n in w.func.nodes)
    ]
    assert len(wide) > 2


def test_streams_that_need_each_other_keep_their_order() -> None:
    func = late_values()
    order = list(func.nodes)
    first, last = order[0], order[-1]
    assert in_stream_order(order, {first: (last,)}) == order


@pytest.mark.parametrize("causal", [False, True])
def test_an_operator_by_hand_is_one_kernel_without_scores_in_memory(causal: bool) -> None:
    b = Builder()
    q, k, v = (param(name, tensor("bf16", 1, 8, T, D)) for name in "qkv")
    out, _ = custom(b, find("attention.with_lse"), [q, k, v], {"causal": causal})
    func = b.func("f", [q, k, v], [out])
    flops = 2 * 2 * 8 * T * T * D * (0.5 if causal else 1.0)
    assert H200.gpu is not None
    assert 1 < compute_seconds(func, H200) * H200.gpu.stream_rate / flops < 1.6
    assert stored_bytes(func, H200) < 8 * T * T // 8
