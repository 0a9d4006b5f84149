"""Equal groups once: the result of a pass for one group is used for all equivalent ones."""

from __future__ import annotations

from typing import Any

import pytest

from stack import Pipeline
from stack.errors import VerifyError
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import F32, TensorType
from stack.passes import distribute, tile
from stack.rewrite.equivalent_groups import CachedTransform

LAYERS = 3
MAKERS = (
    (tile, "lowering_of", "tile"),
    (distribute, "distribute_kernel", "tile,distribute"),
    (tile, "lowering_of", "blocks"),
)


def layers() -> Func:
    """A program of equal layers, each a product and a norm with names and lines of its own."""
    b = Builder()
    row = TensorType(F32, (48, 64))
    x = first = param("x", row)
    weights = [param(f"w{i}", TensorType(F32, (64, 64))) for i in range(LAYERS)]
    for i, w in enumerate(weights):
        b.loc = (f"net.py:3 layers.{i}",)
        hidden = b.dot(x, w, rule="m k, k n -> m n", named=f"hidden_{i}")
        b.loc = (f"net.py:4 layers.{i}", f"net.py:5 layers.{i}")
        top = b.reduce(hidden, kind="max", axes=(1,), named=f"top_{i}")
        b.loc = (f"net.py:6 layers.{i}",)
        shifted = b.sub(hidden, b.broadcast(top, axes=(0,), type=row), named=f"shifted_{i}")
        x = b.exp(shifted, named=f"out_{i}")
    return Func("net", Block([first, *weights], [x], b.names, b.locs))


def fused() -> Func:
    return Pipeline("fuse").run(layers()).func


@pytest.mark.parametrize(("owner", "name", "spec"), MAKERS)
def test_kernels_of_equal_groups_are_made_once(
    owner: Any, name: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are what they would be, each on its own: nodes, names and source lines."""
    groups: list[Node] = []
    make = getattr(owner, name)

    def counted(group: Node, *options: object) -> Node:
        groups.append(group)
        return make(group, *options)

    monkeypatch.setattr(owner, name, counted)
    once = Pipeline(spec).run(fused()).func
    made, groups[:] = len(groups), []
    monkeypatch.setattr(CachedTransform, "__call__", lambda self, group: self.make(group))
    each = Pipeline(spec).run(fused()).func
    assert len(groups) == LAYERS * made
    assert str(once) == str(each)
    assert all(f"layers.{i}" in str(once) for i in range(LAYERS))


def test_groups_with_lines_in_other_places_are_not_alike() -> None:
    seen: list[Node] = []

    def kept(group: Node) -> Node:
        seen.append(group)
        return group

    once = CachedTransform(kept)
    p, x, y = (param(n, TensorType(F32, (64,))) for n in ("p0", "x", "y"))
    body = Builder()
    first = body.exp(p)
    second = body.neg(first)
    for arg, located in ((x, first), (y, first), (x, second)):
        block = Block([p], [second], {}, {located: ("net.py:3",)})
        group = Node("fusion", (arg,), {"kind": "loop", "name": "exp_neg"}, x.type, (block,))
        assert once(group) is group
    assert len(seen) == 2


def test_an_error_names_the_lines_of_its_own_group() -> None:
    def refuse(group: Node) -> Node:
        (block,) = group.blocks
        raise VerifyError("no", "exp", block.locs[block.results[0]])

    p = param("p0", TensorType(F32, (64,)))
    result = Builder().exp(p)
    once = CachedTransform(refuse)
    for line in ("net.py:3", "net.py:9"):
        block = Block([p], [result], {}, {result: (line,)})
        group = Node("fusion", (p,), {"kind": "loop", "name": "exp"}, p.type, (block,))
        with pytest.raises(VerifyError, match=line):
            once(group)
