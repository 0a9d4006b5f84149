"""The cheapest path between all shardings of small meshes: it is valid, and no path is cheaper."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from sharded_cases import MESHES, random_sharding

from stack.ir import Builder, Func, param, tensor
from stack.ir.interpreter import evaluate
from stack.mesh.meshes import parse_mesh
from stack.mesh.ops import traffic
from stack.mesh.sharding import Sharding, sharded
from stack.passes.sharding.collectives import moved
from stack.passes.sharding.rank_code import local_type
from stack.passes.sharding.route import route
from stack.run.mesh import parts_of, whole_of
from stack.sim.mesh_space import MeshSpace, RankParts

M = parse_mesh("dp=2, tp=4")
X = tensor("f32", 8, 16)
KIB = X.bytes


def lies(dims: str, partial: str = "") -> Sharding:
    axes = [() if d == "-" else M.axes_of(d) for d in dims.split("; ")]
    return sharded(M, axes, M.axes_of(partial))


@pytest.mark.parametrize(
    ("source", "target", "steps", "sent"),
    [
        (lies("-; -"), lies("dp; tp"), ["shard", "shard"], 0),
        (lies("tp; -"), lies("-; -"), ["all_gather"], KIB * 3 // 4),
        (lies("-; -", "tp"), lies("-; -"), ["all_reduce"], KIB * 3 // 2),
        (lies("-; -", "tp"), lies("tp; -"), ["reduce_scatter"], KIB * 3 // 4),
        (lies("-; -", "dp, tp"), lies("-; -"), ["all_reduce"], KIB * 7 // 4),
        (lies("tp; -"), lies("-; tp"), ["all_to_all"], KIB // 4 * 3 // 4),
        (lies("dp, tp; -"), lies("-; dp, tp"), ["all_to_all"], KIB // 8 * 7 // 8),
        (lies("dp, tp; -"), lies("dp; -"), ["all_gather"], KIB // 2 * 3 // 4),
        (lies("dp, tp; -"), lies("-; -"), ["all_gather"], KIB * 7 // 8),
        (lies("dp, tp; -"), lies("tp, dp; -"), ["permute"], KIB // 8),
        (lies("tp; -"), lies("tp:(1)2; -"), ["all_gather"], KIB // 4),
        (lies("-; -"), lies("-; -", "tp"), ["keep_first"], 0),
    ],
)
def test_known_ways(source: Sharding, target: Sharding, steps: list[str], sent: int) -> None:
    way = route(X, source, target)
    assert ([s.op for s in way.steps], way.bytes) == (steps, sent)


def check(rng: random.Random, ops: Counter[str]) -> None:
    shape = [rng.choice([1, 2, 3, 4, 5, 8, 9, 10, 14, 21]) for _ in range(rng.randint(1, 3))]
    type_ = tensor("i64", *shape)
    mesh = rng.choice(MESHES)
    source, target = (random_sharding(mesh, type_, rng).closed() for _ in range(2))
    free = [a for a in map(mesh.axis, dict(mesh.axes)) if not any(map(a.meets, source.used))]
    partial = tuple(a for a in free if rng.random() < 0.4)
    source = sharded(mesh, source.axes, partial)
    b = Builder()
    x = param("x", local_type(type_.with_sharding(source)))
    made = moved(b, x, type_, source, target)
    sent = sum(traffic(n) for n in b.func("f", [x], [made]).nodes)
    assert sent == route(type_, source, target).bytes
    func = Func("f", b.block([x], [made]))
    whole = np.arange(type_.size).reshape(shape) + 1
    space = MeshSpace(mesh)
    parts = parts_of(whole, source, filler=1000)
    for rank, part in enumerate(parts):  # of a sum, each rank adds its number to one element
        place = mesh.positions(rank, partial)
        part *= 1 + sum(place)
    weight = sum(1 + sum(mesh.positions(r, partial)) for r in mesh.groups(partial)[0])
    (held,) = evaluate(func.body, [RankParts(tuple(parts))], space)
    wanted = whole * (weight if partial else 1)
    found = whole_of(held.parts, type_.with_sharding(target), mesh)
    assert np.array_equal(found, wanted), f"{type_} {source} to {target}"
    ops.update(n.op for n in func.nodes)


def test_every_way_leads_there() -> None:
    rng = random.Random(11)
    ops: Counter[str] = Counter()
    for _ in range(900):
        check(rng, ops)
    print(dict(ops))
    wanted = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute", "shard"}
    assert wanted <= set(ops)


@pytest.mark.parametrize("mesh", ["a=2, b=2", "a=2, b=3", "a=3, b=2", "a=3, b=5", "a=2, b=2, c=2"])
def test_a_dim_that_no_axis_divides_is_gathered_whole(mesh: str) -> None:
    names = ", ".join(axis.split("=")[0] for axis in mesh.split(", "))
    at = parse_mesh(mesh)
    ranks = at.ranks
    for size in (ranks, ranks + 1, 2 * ranks - 1, 10 + ranks, 39):
        type_ = tensor("i64", size)
        source = sharded(at, [at.axes_of(names)])
        x = param("x", local_type(type_.with_sharding(source)))
        b = Builder()
        made = moved(b, x, type_, source, sharded(at, [()]))
        whole = np.arange(size)
        parts = RankParts(tuple(parts_of(whole, source, filler=1000)))
        (held,) = evaluate(b.block([x], [made]), [parts], MeshSpace(at))
        assert all(np.array_equal(part, whole) for part in held.parts), f"{size} over {mesh}"
