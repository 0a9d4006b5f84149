"""What never needs memory: scores of attention between segments, and in what is expected."""

from __future__ import annotations

import pytest

from stack.ir import Builder, Func, Node, param, tensor
from stack.ir.mesh import parse_mesh
from stack.ir.mesh_ops import is_meeting
from stack.rewrite.streamed import streamed
from stack.run.segments import Segment, steps_of
from stack.sim import machine, simulate
from stack.sim.costs import compute_seconds, stored_bytes

T, D = 4096, 64
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
