"""Sequences and experts in parts: rings, all-to-alls, their bytes, and the same values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from sharded_blocks import B, Blocks, D

from stack.errors import UsageError
from stack.ir import Builder, Func, Node, param, parse, tensor
from stack.ir.space import NumpySpace
from stack.passes.context_parallel import ContextParallel
from stack.passes.data_parallel import DataParallel
from stack.passes.expert_parallel import ExpertParallel
from stack.passes.ring import Ring
from stack.passes.tensor_parallel import TensorParallel
from stack.rewrite import Pass, Pipeline, random_inputs
from stack.run.mesh import SimulatedRun, simulate

T = 48
MESH = "dp=2, cp=4"
DATA = DataParallel(MESH, batch=("x",))
PART = B // 2 * T // 4 * D * 4  # bytes that a rank has of q, k or v


def attention() -> Func:
    b = Blocks(T)
    return b.made(b.attention(b.x))


def run(func: Func, *passes: Pass, after: str = "spmd", scale: float = 1.0) -> SimulatedRun:
    """All ranks, and what they send; results are compared with those of the whole program."""
    placed = Pipeline([*passes, *Pipeline("propagate,reshard").passes]).run(func).func
    local = Pipeline(after).run(placed).func
    arrays = [a * np.asarray(scale, a.dtype) for a in random_inputs(func)]
    found = simulate(placed, local, arrays, filler=77)
    wanted = func.interpret(*arrays)
    for made, want in zip(found.results, wanted if isinstance(wanted, tuple) else (wanted,)):
        assert np.abs(made - want).max() <= 1e-5 * max(np.abs(want).max(), 1)
    return found


def test_scores_stay_with_their_rows() -> None:
    """Keys and values are gathered, each 3 parts; then they come in as many steps."""
    ring = ContextParallel(MESH, batch=("x",))
    whole = run(attention(), DATA, ring)
    assert whole.counts == {"all_gather": 2} and whole.sent == {"all_gather": 2 * 3 * PART}
    turns = run(attention(), DATA, ring, after="spmd,ring")
    assert turns.counts == {"permute": 6} and turns.sent == {"permute": 2 * 3 * PART}


@pytest.mark.parametrize("heads", [1, 4])
def test_keys_are_sent_once_and_before_they_are_repeated(heads: int) -> None:
    """Keys of one or four heads, which are values too, for queries of four heads."""
    b = Builder()
    every = tensor("f32", 4, T, D)
    x, k = param("x", every), param("k", tensor("f32", heads, T, D))
    shown = k
    if heads == 1:
        shown = b.broadcast(b.reshape(k, type=tensor("f32", T, D)), axes=(1, 2), type=every)
    table = tensor("f32", 4, T, T)
    scores = b.dot(x, shown, rule="h m d, h n d -> h m n", type=table)
    weights = b.exp(b.mul(scores, 0.01))
    across = b.transpose(shown, perm=(0, 2, 1))
    made = b.dot(weights, across, rule="h m n, h d n -> h m d", type=every)
    func = b.func("f", [x, k], [made])
    passes = ContextParallel("cp=4", batch=("x", "k"))
    found = run(func, passes, after="spmd,ring")
    assert found.sent == {"permute": 3 * heads * T // 4 * D * 4}


@pytest.mark.parametrize("scale", [1.0, 8.0])  # parts whose maxima are far apart
def test_no_rank_holds_what_is_gathered(scale: float) -> None:
    placed = [DATA, ContextParallel(MESH, batch=("x",)), *Pipeline("propagate,reshard").passes]
    local = Pipeline([*placed, *Pipeline("spmd,ring").passes]).run(attention()).func
    rows = [n.shape for n in local.nodes if n.tensor.rank > 2]
    assert all(T not in shape for shape in rows)
    run(attention(), DATA, ContextParallel(MESH, batch=("x",)), after="spmd,ring", scale=scale)


def masked(value: float) -> Func:
    """Causal attention by positions; rows of the first rank see nothing of later parts."""
    b = Builder()
    x = param("x", tensor("f32", B, T, D))
    s = b.dot(x, x, rule="b q d, b k d -> b q k")
    rows, columns = (b.iota(axis=i, type=tensor("i64", T, T)) for i in (0, 1))
    seen = b.broadcast(b.ge(rows, columns), axes=(1, 2), type=tensor("bool", B, T, T))
    s = b.select(seen, s, b.const(value, "f32"))
    top = b.broadcast(b.reduce(s, kind="max", axes=(2,)), axes=(0, 1), type=s.type)
    e = b.exp(b.sub(s, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(2,)), axes=(0, 1), type=s.type)
    return b.func("f", [x], [b.dot(b.div(e, total), x, rule="b q k, b k d -> b q d")])


@pytest.mark.parametrize("value", [-np.inf, -1e9])
def test_positions_of_a_part_are_those_in_the_whole(value: float) -> None:
    found = run(masked(value), ContextParallel("cp=4", batch=("x",)), after="spmd,ring")
    assert set(found.counts) == {"permute"}


def test_turns_in_which_all_is_hidden_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 of 4 times 4 parts of causal scores are above the diagonal; parts still travel on."""
    ran: list[str] = []
    plain = NumpySpace.op_dot

    def counted(self: NumpySpace, node: Node, *args: np.ndarray) -> np.ndarray:
        ran.append(str(node.attrs["rule"]))
        return plain(self, node, *args)

    func = masked(-np.inf)
    arrays = random_inputs(func)
    wanted = func.interpret(*arrays)
    passes = [ContextParallel("cp=4", batch=("x",)), *Pipeline("propagate,reshard").passes]
    placed = Pipeline(passes).run(func).func
    local = Pipeline("spmd,ring").run(placed).func
    monkeypatch.setattr(NumpySpace, "op_dot", counted)
    found = simulate(placed, local, arrays)
    assert len(ran) == 2 * (16 - 6) and found.counts == {"permute": 3}
    assert np.abs(found.results[0] - wanted).max() < 1e-5


def test_heads_take_four_all_to_alls() -> None:
    found = run(attention(), DATA, ContextParallel(MESH, batch=("x",), by="heads"))
    assert found.counts == {"all_to_all": 4} and found.sent == {"all_to_all": 4 * PART * 3 // 4}


def test_sequence_and_heads_in_one_mesh() -> None:
    """Each rank has some heads of a part of the sequence, and the ring is among its own heads."""
    mesh = "cp=2, tp=2"
    columns = TensorParallel(mesh, columns=("wq", "wk", "wv"), rows=("wo",))
    ring = ContextParallel(mesh, batch=("x",))
    found = run(attention(), ring, columns, after="spmd,ring")
    assert found.sent["permute"] == 2 * (B * T // 2 * D // 2 * 4)


def test_what_is_needed_whole_is_gathered() -> None:
    """A running sum takes the gathered axis in order; a sum beside it alone would gain nothing."""
    text = """func @f(%x: f32[4]) -> (f32[], f32[8]) at tensor {
  %g = all_gather(%x) {axis=0, mesh="cp=2", over="cp"} : f32[8]
  %y = reduce(%g) {axes=[0], kind="sum"} : f32[]
  %z = scan(%g) {axis=0, kind="sum", reverse=false} : f32[8]
  return %y, %z
}"""
    func = parse(text)
    assert Pipeline([Ring()]).run(func).func is func


def test_sums_that_are_scattered_travel() -> None:
    """x x^T y, its columns on all ranks: one way around for both, an add in every step."""
    text = """func @f(%x: f32[2, 3], %y: f32[2]) -> (f32[2], f32[2]) at tensor {
  %g = all_gather(%x) {axis=0, mesh="cp=4", over="cp"} : f32[8, 3]
  %s = dot(%x, %g) {rule="m k, n k -> m n"} : f32[2, 8]
  %t = dot(%s, %y) {rule="m n, m -> n"} : f32[8]
  %c = reduce_scatter(%t) {axis=0, kind="sum", mesh="cp=4", over="cp"} : f32[2]
  %r = reduce(%s) {axes=[1], kind="max"} : f32[2]
  return %c, %r
}"""
    local = Pipeline([Ring()]).run(parse(text)).func
    ops = [n.op for n in local.nodes]
    assert ops.count("permute") == 3 + 3 and "all_gather" not in ops and "reduce_scatter" not in ops
    placed = parse(
        """func @f<@m(cp=4)>(%x: f32[8{cp}, 3] @m, %y: f32[8{cp}] @m) -> (f32[8], f32[8])
at tensor {
  %s = dot(%x, %x) {rule="m k, n k -> m n"} : f32[8{cp}, 8] @m
  %t = dot(%s, %y) {rule="m n, m -> n"} : f32[8{cp}] @m
  %r = reduce(%s) {axes=[1], kind="max"} : f32[8{cp}] @m
  return %t, %r
}"""
    )
    arrays = random_inputs(placed)
    for made, want in zip(simulate(placed, local, arrays).results, placed.interpret(*arrays)):
        assert np.allclose(made, want, atol=1e-5)


def test_gathered_parts_are_not_kept_for_the_way_back() -> None:
    """Parts that a later sum also reads travel again, the other way."""
    text = """func @f(%x: f32[2]) -> (f32[2]) at tensor {
  %g = all_gather(%x) {axis=0, mesh="cp=3", over="cp"} : f32[6]
  %a = reduce(%g) {axes=[0], kind="sum"} : f32[]
  %b = broadcast(%a) {axes=[]} : f32[6]
  %c = div(%b, %g) : f32[6]
  %d = exp(%c) : f32[6]
  %e = reduce(%d) {axes=[0], kind="sum"} : f32[]
  %y = broadcast(%e) {axes=[]} : f32[2]
  return %y
}"""
    local = Pipeline([Ring()]).run(parse(text)).func
    orders = [n.attrs["order"] for n in local.nodes if n.op == "permute"]
    assert sorted(orders) == [(1, 2, 0)] * 2 + [(2, 0, 1)] * 2


# ---- experts

E, C = 8, 4  # experts, and the tokens of a sequence for each
MIXED = "dp=2, ep=4"
EXPERTS = ExpertParallel(MIXED, experts=("up", "down"))
BATCH = tuple(DataParallel(MIXED, axis, ("x", "sent")) for axis in ("dp", "ep"))


def experts() -> Func:
    """The elements of each sequence that `sent` picks pass through an expert's perceptron."""
    b = Builder()
    x, sent = param("x", tensor("f32", 16, T, D)), param("sent", tensor("f32", 16, T, E, C))
    up, down = param("up", tensor("f32", E, D, 64)), param("down", tensor("f32", E, 64, D))
    taken = b.dot(sent, x, rule="b s e c, b s d -> e b c d")
    h = b.tanh(b.dot(taken, up, rule="e b c d, e d f -> e b c f"))
    made = b.dot(h, down, rule="e b c f, e f d -> e b c d")
    back = b.dot(sent, made, rule="b s e c, e b c d -> b s d")
    return b.func("f", [x, sent, up, down], [back])


def test_tokens_go_to_experts_and_back() -> None:
    found = run(experts(), *BATCH, EXPERTS)
    part = 16 // 8 * E * C * D * 4
    assert found.counts == {"all_to_all": 2} and found.sent == {"all_to_all": 2 * part * 3 // 4}


# ---- what cannot be


@pytest.mark.parametrize(
    ("passed", "func", "told"),
    [
        (ContextParallel("cp=8", batch=("x",), by="heads"), attention, "no axis of heads that 8"),
        (ContextParallel("cp=4", batch=("x",), by="rows"), attention, "ring or heads: 'rows'"),
        (ContextParallel("cp=64", batch=("x",)), attention, "48 element.* for 64 parts"),
        (ContextParallel("cp=4", "tp", ("x",)), attention, "no axis 'tp'"),
        (dataclasses.replace(EXPERTS, dim=2), experts, "no product has dim 2"),
        (dataclasses.replace(EXPERTS, experts=("*.experts.*",)), experts, "no parameter"),
        (dataclasses.replace(EXPERTS, mesh="ep=16"), experts, "8 element.* for 16 parts"),
    ],
)
def test_what_cannot_be(passed: Pass, func: Callable[[], Func], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Pipeline([passed]).run(func())
