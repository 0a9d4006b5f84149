"""Meshes, axes and parts of axes; shardings as text, as types, and what the verifier refuses."""

from __future__ import annotations

import random

import pytest
from sharded_cases import MESHES, random_sharding

import stack
from stack.errors import ParseError, RuleError, VerifyError
from stack.ir import Block, Func, Node, param, parse, tensor
from stack.ir.equivalence import facts_of
from stack.ir.types import unsharded
from stack.mesh.meshes import Mesh, atoms, joined, parse_mesh, starts_with
from stack.mesh.sharding import Sharding, part_held, part_start, replicated, sharded

M = parse_mesh("dp=2, tp=4")
HEAD = "func @f<@m(dp=2, tp=4)>(%x: {0}) -> ({0}) at tensor {{\n  return %x\n}}\n"


def test_groups_differ_along_their_axes_only() -> None:
    assert M.groups(M.axes_of("tp")) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert M.groups(M.axes_of("dp")) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert M.groups(M.axes_of("tp, dp")) == ((0, 4, 1, 5, 2, 6, 3, 7),)
    assert M.groups(M.axes_of("tp:(1)2")) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert M.groups(M.axes_of("tp:(2)2")) == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_parts_of_an_axis_make_the_axis() -> None:
    tp = M.axis("tp")
    major, minor = tp.split(2)
    assert (str(major), str(minor)) == ("tp:(1)2", "tp:(2)2")
    assert joined((major, minor)) == (tp,)
    assert atoms((tp,)) == (major, minor)
    assert starts_with((tp,), (major,)) and not starts_with((tp,), (minor,))
    assert tp.meets(minor) and not major.meets(minor)


@pytest.mark.parametrize(
    ("text", "told"),
    [("dp", "dp=2, tp=4"), ("dp=2, dp=2", "twice"), ("dp=0", "without ranks")],
)
def test_what_is_no_mesh(text: str, told: str) -> None:
    with pytest.raises(RuleError, match=told):
        parse_mesh(text)


@pytest.mark.parametrize("text", ["ep", "tp:(2)4", "tp:(1)3"])
def test_what_is_no_axis(text: str) -> None:
    with pytest.raises(RuleError, match=r"m\(dp=2, tp=4\)|'tp' of mesh"):
        M.axis(text)


@pytest.mark.parametrize("size", range(1, 14))
def test_parts_are_cut_one_axis_after_another(size: int) -> None:
    """Every element has one owner, and parts of a part are parts of the whole."""
    axes = M.axes_of("dp, tp")
    seen: list[int] = []
    for rank in range(8):
        place = M.positions(rank, axes)
        start, held = part_start(size, axes, place), part_held(size, axes, place)
        outer = part_start(size, axes[:1], place[:1])
        assert held == 0 or outer <= start < start + held <= outer + -(-size // 2)
        seen.extend(range(start, start + held))
    assert sorted(seen) == list(range(size))


@pytest.mark.parametrize(
    "type_",
    [
        "f32[8{dp}, 64, 1024{tp}] @m",
        "f32[8{dp, ?}p1, 64{tp:(1)2}] @m",
        "f32[8{?}, 64{?}] @m + replicated(tp)",
        "f32[8{tp:(2)2}, 64] @m + partial(max: dp)",
        "f32[8{dp}, 64] @m + replicated(tp:(1)2) + partial(sum: tp:(2)2)",
        "bf16[] @m",
    ],
)
def test_text_reads_back(type_: str) -> None:
    func = parse(HEAD.format(type_))
    stack.verify(func)
    assert str(func) == HEAD.format(type_)
    assert parse(str(func)) is func


def test_random_shardings_read_back() -> None:
    rng = random.Random(5)
    for _ in range(100):
        type_ = tensor("f32", *(rng.choice([1, 2, 4, 5, 8]) for _ in range(rng.randint(0, 4))))
        placed = type_.with_sharding(random_sharding(rng.choice(MESHES), type_, rng))
        x = param("x", placed)
        func = Func("f", Block([x], [x]))
        assert parse(str(func)) is func


def test_places_make_other_nodes_of_equal_types() -> None:
    type_ = tensor("f32", 8, 4)
    placed = type_.with_sharding(sharded(M, ((M.axis("dp"),), ())))
    assert placed == type_ and hash(placed) == hash(type_)
    x, y = param("x", type_), param("x", placed)
    assert x is not y and y is param("x", placed)
    made = stack.ir.make("neg", [y])
    assert made.type.sharding is None  # a new value has no sharding yet
    assert unsharded(placed).sharding is None


@pytest.mark.parametrize(
    ("type_", "told"),
    [
        ("f32[8{ep}] @m", "no axis 'ep'"),
        ("f32[8{dp}]", "expected the mesh"),
        ("f32[8{dp}] @n", "expected a mesh"),
        ("f32[8{dp}] @m + closed(tp)", "expected replicated or partial"),
        ("f32[8{dp tp}] @m", "expected ','"),
    ],
)
def test_what_cannot_be_read(type_: str, told: str) -> None:
    with pytest.raises(ParseError, match=told):
        parse(HEAD.format(type_))


@pytest.mark.parametrize(
    ("type_", "told"),
    [
        ("f32[8{dp}, 8{dp}] @m", "axis 'dp' of mesh .* is used twice"),
        ("f32[8{tp}] @m + partial(sum: tp:(2)2)", "used twice"),
        ("f32[8{dp}] @m + replicated(dp)", "used twice"),
        ("f32[3{tp}] @m", r"3 element\(s\) for 4 parts \(tp\); axes that fit: dp \(2\)"),
        ("f32[8] @m + partial(mean: tp)", "one of sum, prod"),
    ],
)
def test_what_cannot_lie_so(type_: str, told: str) -> None:
    with pytest.raises(VerifyError, match=told) as found:
        stack.verify(parse(HEAD.format(type_)))
    assert "%x" in str(found.value)


def test_one_mesh_for_a_function() -> None:
    other = Mesh("n", (("dp", 2),))
    x = param("x", tensor("f32", 4).with_sharding(replicated(M, 1)))
    y = param("y", tensor("f32", 4).with_sharding(Sharding(other, replicated(M, 1).dims)))
    with pytest.raises(VerifyError, match="several meshes"):
        stack.verify(Func("f", Block([x, y], [Node("add", [x, y], {}, tensor("f32", 4))])))


def test_nodes_of_different_shardings_are_not_equivalent() -> None:
    x = param("x", tensor("f32", 8, 4))
    placed = x.tensor.with_sharding(replicated(M, 2))
    node = Node("exp", (x,), {}, x.type)
    nodes = [node, node.rebuilt(type_=placed), node.rebuilt([param("x", placed)])]
    assert len({id(facts_of(n)) for n in nodes}) == len(nodes)
