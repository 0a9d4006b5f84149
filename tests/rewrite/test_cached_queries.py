"""Repeated queries are cached: unfused neighbours, equivalent groups, blocks."""

from __future__ import annotations

from collections import Counter

import pytest
from counted import calls_of

from stack.ir import Builder, Func, Node, param, parse, tensor
from stack.ir.dim import symbol
from stack.ir.node import walk
from stack.ir.types import type_symbols
from stack.passes.policies.cpu_products import CpuProducts
from stack.passes.positions import streams
from stack.passes.schedule import WriteSchedules
from stack.rewrite import Pipeline
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.fusion import FusionRule
from stack.rewrite.group import Group
from stack.rewrite.join import Maps
from stack.rewrite.verdict import Acceptance, Ok, Why
from stack.target import load

CHAINS = """
func @main(%x: f32[64], %y: f32[64]) -> (f32[64], f32[64]) at tensor {
  %a = exp(%x) : f32[64]
  %b = sin(%a) : f32[64]
  %c = cos(%b) : f32[64]
  %d = exp(%c) : f32[64]
  %e = sin(%d) : f32[64]
  %f = cos(%e) : f32[64]
  %g = exp(%y) : f32[64]
  %h = tanh(%g) : f32[64]
  return %f, %h
}
"""


class ApartFromTanh(FusionRule):
    """Joins all but tanh with what it reads."""

    asked: Counter[tuple[Group, Group]] = Counter()

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        self.asked[producer, consumer] += 1
        return Why("tanh stays unfused") if consumer.members[0].op == "tanh" else Ok


def test_neighbours_that_stay_apart_are_asked_once() -> None:
    ApartFromTanh.asked.clear()
    rules = f"rules=[{__name__}:ApartFromTanh,-VerticalFusion,-RowFusion]"
    (record,) = Pipeline(f"fuse{{epilogue=false, {rules}}}").run(parse(CHAINS)).records
    assert set(ApartFromTanh.asked.values()) == {1}
    assert len(ApartFromTanh.asked) > 4, "several rounds were needed"
    (refused,) = record.refused
    assert refused.reason == "tanh stays unfused"


def products(sizes: list[int]) -> Func:
    b = Builder()
    x = param("x", tensor("f32", 64, 96))
    weights = [param(f"w{i}", tensor("f32", 96, n)) for i, n in enumerate(sizes)]
    made = [b.dot(x, w, rule="m k, k n -> m n") for w in weights]
    return b.func("main", [x, *weights], made)


@pytest.mark.parametrize(
    ("sizes", "policies"), [([64] * 5, 1), ([64, 32, 64, 32], 2), ([32, 64, 96], 3)]
)
def test_groups_that_are_alike_have_one_policy(
    sizes: list[int], policies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Node] = []
    candidates = CpuProducts.candidates

    def counted(policy: CpuProducts) -> object:
        made.append(policy.dots[0])
        return candidates(policy)

    func = Pipeline("fuse").run(products(sizes)).func
    cpu = load("avx512")
    alone = [WriteSchedules(loops="cpu", most=9).best(n, cpu) for n in func.nodes]
    monkeypatch.setattr(CpuProducts, "candidates", counted)
    (record,) = Pipeline("schedule{loops=cpu, most=9}").run(func, target=cpu).records
    assert len(made) == policies
    assert [list(n.attrs["schedule"]) for n in record.after.nodes] == alone
    assert len({id(choice) for choice in record.choices}) == len(sizes)


def test_what_does_not_depend_on_a_change_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    func = parse(CHAINS)
    place = {func.body.names[n]: n for n in func.nodes}
    rebuilt: list[str] = []
    real = Node.rebuilt

    def watched(node: Node, *args: object, **options: object) -> Node:
        rebuilt.append(node.op)
        return real(node, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Node, "rebuilt", watched)
    node = place["e"]
    changed = replace(func.body, {node: Replacement(Node("tan", node.args, {}, node.type))})
    assert rebuilt == ["tan", "cos"]
    assert [n.op for n in changed.nodes] == [
        "exp",
        "sin",
        "cos",
        "exp",
        "tan",
        "cos",
        "exp",
        "tanh",
    ]
    assert list(changed.names.values()) == list("abcdefgh")


def test_the_axes_of_a_stream_are_looked_for_with_and_without_its_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[object] = []
    real = streams.stream_index_maps

    def watched(*blocks: object) -> object:
        looked.append(blocks)
        return real(*blocks)  # type: ignore[arg-type]

    monkeypatch.setattr(streams, "stream_index_maps", watched)
    b = Builder()
    q, k, v = (param(name, tensor("f32", 4, 1021, 64)) for name in "qkv")
    scores = b.dot(q, k, rule="b m d, b n d -> b m n")
    top = b.broadcast(b.reduce(scores, kind="max", axes=(2,)), axes=(0, 1), type=scores.type)
    weights = b.exp(b.sub(scores, top))
    total = b.broadcast(b.reduce(weights, kind="sum", axes=(2,)), axes=(0, 1), type=weights.type)
    result = b.dot(b.div(weights, total), v, rule="b m n, b n d -> b m d")
    func = b.func("main", [q, k, v], [result])
    cpu = load("avx512")
    streamed = Pipeline("stream{loops=cpu},schedule{loops=cpu},tile").run(func, target=cpu).func
    assert [n.op for n in streamed.nodes] == ["kernel"]
    assert len(looked) == 2, "with its schedule, and without"


def layers(count: int) -> Func:
    """Layers of a norm and a product with an epilogue, on weights of their own."""
    b = Builder()
    x = param("x", tensor("f32", 48, 64))
    weights = [param(f"w{i}", tensor("f32", 64, 64)) for i in range(count)]
    value = x
    for w in weights:
        mean = b.reduce(b.mul(value, value), kind="sum", axes=(1,))
        normed = b.mul(value, b.broadcast(b.rsqrt(b.add(mean, 1.0)), axes=(0,), type=x.type))
        value = b.add(value, b.tanh(b.dot(normed, w, rule="m k, k n -> m n")))
    return b.func("main", [x, *weights], [value])


def test_work_grows_as_the_layers_do() -> None:
    cpu = load("avx512")
    passes = "canonicalize,layout,stream{loops=cpu},fuse,schedule{loops=cpu},tile,distribute"

    def work(count: int) -> int:
        func = layers(count)
        return calls_of(lambda: Pipeline(passes).run(func, target=cpu))[1]

    work(2)  # tables that are made once
    first, second, third = work(4), work(8), work(16)
    assert third - second < 2.3 * (second - first)


def test_sizes_and_meshes_of_a_function_are_those_of_all_its_nodes() -> None:
    b = Builder()
    x = param("x", tensor("f32", symbol("S", 0, 99), 8))
    y = param("y", tensor("f32", symbol("T", 2, 9)))
    func = b.func("main", [x, y], [b.exp(x), b.tanh(b.exp(y))])
    for found in (func, Pipeline("fuse").run(func).func):
        assert set(found.symbols) == {s for _, n in walk(found.body) for s in type_symbols(n.type)}
        assert [s.name for s in found.symbols] == ["S", "T"]
        assert found.meshes == ()
    assert parse(CHAINS).symbols == ()
