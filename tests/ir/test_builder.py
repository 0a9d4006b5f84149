"""Making functions and mapping them: names, source lines, numbers, sizes."""

from __future__ import annotations

import numpy as np
import pytest
from random_funcs import kernel_func, random_func

from stack.errors import RuleError
from stack.ir import (
    Block,
    Builder,
    Func,
    Node,
    constant,
    make,
    param,
    parse,
    rebuild,
    tensor,
    verify,
)
from stack.ir.builder import rebuild_block
from stack.ir.dim import symbol
from stack.ir.node import by_distance, deps, topological


def test_numbers_take_the_type_of_the_other_operand() -> None:
    b = Builder()
    x, i, c = param("x", tensor("f16", 2)), param("i", tensor("i8")), param("c", tensor("bool", 2))
    assert b.add(x, 1).args[1].dtype.name == "f16"
    assert b.sub(2.0, i).args[0].attrs["value"].array == 2
    assert b.select(c, x, 0.5).args[2].dtype.name == "f16"
    assert b.and_(c, True).args[1].dtype.name == "bool"
    with pytest.raises(RuleError, match=r"1\.5 is not a number of i8"):
        b.add(i, 1.5)
    for wrong in (300, -129, float("inf"), float("nan")):
        with pytest.raises(RuleError, match="is not a number of i8"):
            b.add(i, wrong)
    with pytest.raises(RuleError, match="cannot infer the element type"):
        b.add(1, 2)


def test_ops_by_name() -> None:
    b = Builder()
    x = param("x", tensor("f32", 2))
    assert b.neg(x) is make("neg", [x]) is b.op("neg", [x])
    with pytest.raises(AttributeError, match="no op 'fluff'"):
        _ = b.fluff
    with pytest.raises(RuleError, match="did you mean neg"):
        b.op("nego", [x])
    with pytest.raises(
        RuleError, match=r"add\(f32\[2\], i64\[\]\): operands have one element type"
    ):
        b.add(x, constant(1))


def test_equal_nodes_are_one_object() -> None:
    b = Builder()
    x = param("x", tensor("f32", 2))
    assert b.add(b.exp(x), 1.0) is b.add(b.exp(x), 1.0)
    assert b.add(x, 0.0) is not b.add(x, -0.0)
    assert constant(1, "i32") is not constant(True)
    assert b.reduce(x, kind="sum", axes=[np.int64(0)]) is b.reduce(x, kind="sum", axes=(0,))


def test_names_and_lines_of_a_builder() -> None:
    b = Builder()
    x = param("x", tensor("f32", 2))
    b.loc = ("a.py:1",)
    y = b.op("exp", [x], named="first")
    b.loc = ("b.py:2", "a.py:1")
    assert b.op("exp", [x], named="second") is y
    func = b.func("f", [x], [y])
    assert func.body.names[y] == "first"  # the first name stays
    assert func.body.locs[y] == ("a.py:1", "b.py:2")  # the lines of all who asked for it


def test_new_nodes_get_the_lines_of_the_old_one() -> None:
    b = Builder()
    x = param("x", tensor("f32", 2))
    b.loc = ("a.py:1",)
    y = b.op("exp", [x], named="e")
    b.loc = ("a.py:2",)
    z = b.op("sub", [y, x], named="d")
    func = b.func("f", [x], [z])

    def split(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        if node.op == "sub":
            return make("add", [args[0], make("neg", [args[1]])])
        return Node(node.op, args, node.attrs, node.type, blocks)

    new = rebuild(func, split)
    lines = {n.op: new.body.locs[n] for n in new.nodes}
    assert lines == {"exp": ("a.py:1",), "neg": ("a.py:2",), "add": ("a.py:2",)}
    names = {n.op: new.body.names[n] for n in new.nodes}
    assert names == {"exp": "e", "neg": "neg", "add": "d"}


def test_merged_nodes_keep_the_lines_of_both() -> None:
    b = Builder()
    x = param("x", tensor("f32", 2))
    b.loc = ("a.py:1",)
    y = b.exp(x)
    b.loc = ("a.py:2",)
    z = b.exp2(x)
    func = b.func("f", [x], [b.add(y, z)])
    new = rebuild(func, lambda n, args, _: make("exp" if n.op == "exp2" else n.op, args))
    (merged,) = [n for n in new.nodes if n.op == "exp"]
    assert new.body.locs[merged] == ("a.py:1", "a.py:2")


@pytest.mark.parametrize("seed", range(40))
def test_rebuild_without_a_change_is_the_same_function(seed: int) -> None:
    func = random_func(seed, symbolic=bool(seed % 2))
    assert rebuild(func) is func


def test_rebuild_reaches_open_and_closed_blocks() -> None:
    func = kernel_func()

    def twice(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        op = "exp2" if node.op == "exp" else node.op
        return Node(op, args, node.attrs, node.type, blocks)

    new = rebuild(func, twice)
    verify(new)
    assert "exp(" not in str(new)
    assert str(new).count("exp2(") == 2
    assert parse(str(new)) is new
    x = np.float32([[1] * 8] * 4)
    assert new.interpret(x).tolist() == (-4 * np.exp2(x)).tolist()


def test_parameters_can_be_replaced() -> None:
    b = Builder()
    x, y = param("x", tensor("f32", 2)), param("y", tensor("f32", 2))
    block = b.block((x,), (b.exp(x),))
    new = rebuild_block(block, params=(y,))
    assert str(Func("f", new)).splitlines()[1] == "  %exp = exp(%y) : f32[2]"


def test_bind_replaces_sizes_everywhere() -> None:
    n = symbol("n", 1, 100)
    b = Builder()
    x = param("x", tensor("f32", n, 3))
    p = param("p", x.type)
    inner = b.block((p,), (b.slice(p, start=(0, 0), limit=(n, 2), step=(2, 1)),))
    y = b.call(x, name="half", blocks=(inner,))
    z = b.reshape(y, type=tensor("f32", y.shape[0] * 2))
    func = b.func("f", [x], [z, b.size_of(n + 1)])
    bound = func.bind({"n": 5})
    verify(bound)
    assert bound.symbols == ()
    assert [r.shape for r in bound.results] == [(6,), ()]
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    out, size = func.interpret(array)
    assert out.tolist() == array[::2, :2].reshape(-1).tolist()
    assert size == 6
    partly = func.bind({})
    assert partly is func


def test_near_roots_come_first_and_gradients_live_shortly() -> None:
    """Gradients of layers are asked for from the first to the last; they come the other way."""
    b = Builder()
    weights = [param(f"w{i}", tensor("f32", 64, 64)) for i in range(8)]
    passed = param("y", tensor("f32", 64, 64))
    found: list[Node] = []
    chain = passed
    for weight in reversed(weights):
        chain = b.dot(chain, weight, rule="m k, k n -> m n")
        found.append(b.dot(chain, passed, rule="m k, k n -> m n"))
    asked = found[::-1]
    assert by_distance(asked) == found
    assert by_distance([asked[0], passed, asked[1]]) == [passed, asked[1], asked[0]]

    def held(results: list[Node]) -> int:
        """The most links of the chain that still have readers."""
        order = b.func("f", [passed, *weights], results).nodes
        last = {d: i for i, n in enumerate(order) for d in n.args}
        links = [(i, last.get(n, i)) for i, n in enumerate(order) if n not in found]
        return max(sum(first <= i <= end for first, end in links) for i in range(len(order)))

    assert held(asked) >= 7
    assert held(by_distance(asked)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_order_is_that_of_a_walk_that_goes_into_operands_first(seed: int) -> None:
    func = (kernel_func if seed % 2 else random_func)(seed)
    nodes = topological(func.results)
    for left_out in (frozenset[Node](), frozenset(nodes[::3])):
        found: dict[Node, None] = {}

        def visit(node: Node) -> None:
            if node not in found and node not in left_out:  # noqa: B023
                for need in deps(node):
                    visit(need)
                found[node] = None  # noqa: B023

        for result in func.results:
            visit(result)
        assert topological(func.results, lambda n: n not in left_out) == list(found)  # noqa: B023
        assert topological(func.results, known=left_out) == list(found)
    for block in {b for n in nodes for b in n.blocks if b.is_open}:
        own = frozenset(block.params)
        found = dict.fromkeys(topological(block.results, lambda n: not own.isdisjoint(n.vars)))  # noqa: B023
        assert topological(block.results, over=own) == list(found)
        assert set(block.nodes) == set(found) - own


@pytest.mark.parametrize("first, second", [(0.0, -0.0), (1, True), (1, 1.0), (1.0, True)])
def test_constants_that_are_equal_numbers_differ(first: float, second: float) -> None:
    assert constant(first) is constant(first) is not constant(second)
    assert constant(first, "f32") is constant(first, "f32")
    assert (constant(first, "f32") is constant(second, "f32")) == (first != 0)


def test_what_is_rebuilt_as_it_is_stays_itself() -> None:
    b = Builder()
    x, y = param("x", tensor("f32", 2)), param("y", tensor("f32", 2))
    total = b.add(x, y)
    assert total.rebuilt() is total is total.rebuilt([x, y])
    assert total.rebuilt([y, x]) is b.add(y, x) is not total
    wide = total.rebuilt(type_=tensor("f64", 2))
    assert wide is not total and wide.type == tensor("f64", 2)
    part = b.slice(x, start=(0,), limit=(1,), step=(1,))
    other = part.rebuilt(attrs={**part.attrs, "start": (1,), "limit": (2,)})
    assert other.attrs["start"] == (1,) and part.rebuilt(attrs=part.attrs) is part


def test_nodes_of_open_blocks_stand_before_their_loop_each_once() -> None:
    func = kernel_func()
    assert func.body.all_nodes == func.body.nodes, "a kernel is closed"
    (block,) = func.results[0].args[0].blocks
    found = block.all_nodes
    assert len(set(found)) == len(found)
    assert set(block.nodes) < set(found)
    place = {n: i for i, n in enumerate(found)}
    for node in found:
        inner = [n for b in node.blocks for n in b.all_nodes]
        assert all(place[n] < place[node] for n in (*inner, *node.args) if n in place)
        assert all(n in place for n in inner)
