"""Costs against numbers counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from random_funcs import kernel_func, random_func

from stack.ir import Block, Builder, Node, param, tensor
from stack.ir.cost import Cost, cost, group_cost, node_axes, total
from stack.ir.dim import symbol
from stack.ir.ops import OPS

b = Builder()
M, N, K = 32, 48, 64


def p(name: str, *shape: Any, dtype: str = "f32") -> Node:
    return param(name, tensor(dtype, *shape))


def test_gemm_is_2mnk() -> None:
    node = b.dot(p("x", M, K), p("w", K, N), rule="m k, k n -> m n")
    assert cost(node) == (2 * M * N * K, 4 * (M * K + K * N), 4 * M * N)
    half = b.dot(p("x", M, K, dtype="bf16"), p("w", N, K, dtype="bf16"), rule="m k, n k -> m n")
    assert cost(half) == (2 * M * N * K, 2 * (M * K + K * N), 2 * M * N)
    batched = b.dot(p("x", 3, M, K), p("w", 3, K, N), rule="b m k, b k n -> b m n")
    assert cost(batched).flops == 3 * 2 * M * N * K
    assert cost(b.dot(p("x", K), p("y", K), rule="k, k ->")) == (2 * K, 8 * K, 4)
    assert cost(b.dot(p("x", M), p("y", N), rule="m, n -> m n")).flops == 2 * M * N


def test_gemm_of_symbolic_sizes() -> None:
    n = symbol("n")
    node = b.dot(p("x", n, K), p("w", K, N), rule="m k, k n -> m n")
    assert cost(node) == (2 * N * K * n, 4 * K * n + 4 * K * N, 4 * N * n)
    assert str(cost(node).bytes) == "448*n + 12288"


def test_conv() -> None:
    attrs: dict[str, Any] = {"low": (1, 1), "high": (1, 1), "lhs_dilation": (1, 1)}
    x, w = p("x", 2, 16, 10, 8), p("w", 32, 4, 3, 3)
    node = b.conv(x, w, **attrs, stride=(2, 1), rhs_dilation=(1, 1), groups=4)
    assert node.shape == (2, 32, 5, 8)
    assert cost(node).flops == 2 * (2 * 32 * 5 * 8) * 4 * 9
    assert cost(node).read == 4 * (2 * 16 * 10 * 8 + 32 * 4 * 9)
    assert node_axes(node)["s0"] == 5


def test_elementwise_and_reductions() -> None:
    x, s = p("x", M, N), p("s")
    assert cost(b.add(x, x)) == (M * N, 2 * 4 * M * N, 4 * M * N)
    assert cost(b.add(x, s)) == (M * N, 4 * M * N + 4, 4 * M * N)
    assert cost(b.add(x, 1.0)) == (M * N, 4 * M * N, 4 * M * N)
    assert cost(b.exp(x)).flops == OPS["exp"].flops * M * N
    assert cost(b.lt(x, x)) == (M * N, 8 * M * N, M * N)
    assert cost(b.cast(x, type=tensor("f16", M, N))) == (M * N, 4 * M * N, 2 * M * N)
    assert cost(b.reduce(x, kind="sum", axes=(1,))) == (M * N, 4 * M * N, 4 * M)
    assert cost(b.scan(x, kind="sum", axis=1, reverse=False)) == (M * N, 4 * M * N, 4 * M * N)
    arg = b.argreduce(x, kind="max", axis=0, type=tensor("i64", N))
    assert cost(arg) == (M * N, 4 * M * N, 8 * N)
    sort = b.sort(x, axis=1, num_keys=1, descending=False)
    assert cost(sort) == (M * N * 6, 4 * M * N, 4 * M * N)  # 48 elements: 6 comparisons each


def test_movement() -> None:
    x, i = p("x", M, N), p("i", 5, dtype="i64")
    assert cost(b.reshape(x, type=tensor("f32", M * N))) == (0, 0, 0)
    assert cost(b.transpose(x, perm=(1, 0))) == (0, 4 * M * N, 4 * M * N)
    row = p("r", N)
    assert cost(b.broadcast(row, axes=(1,), type=tensor("f32", M, N))) == (0, 4 * N, 4 * M * N)
    part = b.slice(x, start=(0, 0), limit=(2, 3), step=(1, 1))
    assert cost(part) == (0, 4 * 6, 4 * 6)
    assert cost(b.gather(x, i, rule="v! d, n -> n d")) == (0, 4 * 5 * N + 8 * 5, 4 * 5 * N)
    u = p("u", 5, N)
    put = b.scatter(x, i, u, rule="v! d, n, n d -> v! d", kind="set")
    assert cost(put) == (0, 4 * M * N + 8 * 5 + 4 * 5 * N, 4 * M * N)
    put = b.scatter(x, i, u, rule="v! d, n, n d -> v! d", kind="add")
    assert cost(put).flops == 5 * N
    assert cost(b.concat(x, x, axis=0)) == (0, 8 * M * N, 8 * M * N)
    padded = b.pad(x, 0.0, low=(1, 0), high=(0, 0), interior=(0, 0))
    assert cost(padded) == (0, 4 * M * N, 4 * (M + 1) * N)
    assert cost(b.iota(axis=0, type=tensor("i64", 9))) == (0, 0, 72)
    assert cost(b.const([1.0, 2.0], "f32")) == Cost()
    assert cost(x) == Cost()


def softmax(x: Node) -> Node:
    def wide(v: Node) -> Node:
        return b.broadcast(v, axes=(0,), type=x.type)

    e = b.exp(b.sub(x, wide(b.reduce(x, kind="max", axes=(1,)))))
    return b.div(e, wide(b.reduce(e, kind="sum", axes=(1,))))


def test_softmax_alone_and_as_a_group() -> None:
    x = p("x", M, N)
    node = softmax(x)
    block = Block((x,), (node,))
    each = M * N
    flops = each + each + 10 * each + each + each  # max, sub, exp, sum, div
    assert group_cost(block) == (flops, 4 * each, 4 * each)
    group = b.fusion(p("y", M, N), kind="loop", blocks=(block,))
    assert cost(group) == (flops, 4 * each, 4 * each)
    apart = total(block.nodes)
    assert apart.flops == flops
    # max r; 2 broadcasts r w; sub; exp; sum; div
    read = each + 2 * M + 2 * each + each + each + 2 * each
    written = M + 2 * each + each + each + M + each
    assert (apart.read, apart.written) == (4 * read, 4 * written)
    call = b.call(p("y", M, N), name="softmax", blocks=(block,))
    assert cost(call) == apart


def test_groups_count_what_they_touch() -> None:
    table, i, x = p("table", 1000, 16), p("i", 4, dtype="i64"), p("x", 4, 16)
    block = Block((table, i, x), (b.add(b.gather(table, i, rule="v! d, n -> n d"), x), x))
    rows = 4 * 16 * 4
    assert group_cost(block) == (4 * 16, rows + 4 * 8 + rows, 2 * rows)
    unused = Block((table, x), (b.neg(x),))
    assert group_cost(unused) == (64, rows, rows)
    two = Block((x,), (b.slice(x, start=(0, 0), limit=(4, 9), step=(1, 1)),
                       b.slice(x, start=(0, 1), limit=(4, 16), step=(1, 1))))  # fmt: skip
    assert group_cost(two).read == rows  # never more than there is
    weight = b.const([[1.0] * 16] * 4, "f32")
    assert group_cost(Block((x,), (b.mul(x, weight),))).read == 2 * rows


def test_control() -> None:
    x, c = p("x", 8), p("c", dtype="bool")
    once, thrice = Block((x,), (b.exp(x),)), Block((x,), (b.exp(b.exp(b.exp(x))),))
    cheap = cost(once.nodes[0])
    assert cost(b.cond(c, x, blocks=(once, thrice))) == cheap.times(3)
    test = Block((x,), (b.const(True),))
    assert cost(b.while_(x, blocks=(test, thrice))) == cheap.times(3)
    assert total(b.func("f", [x], [b.neg(x)]).nodes) == (8, 32, 32)


def test_kernels_count_iterations() -> None:
    func = kernel_func(extent=4)
    (kernel,) = [n for n in func.nodes if n.op == "kernel"]
    each = 10 + 1 + 1  # exp, mul, add
    index = 4 * 2 * 2  # i + j * 0, in the inner loop
    assert cost(kernel) == (2 * 4 * 8 * each + index, 4 * 32, 4 * 32)


@pytest.mark.parametrize("seed", range(60))
def test_every_node_has_a_cost(seed: int) -> None:
    func = random_func(seed, symbolic=bool(seed % 2))
    for node in func.nodes:
        assert len(cost(node)) == 3
    assert total(func.nodes).bytes is not None
