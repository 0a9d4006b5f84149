"""Collectives on a simulated mesh, against the schedules of the operators and by definition."""

from __future__ import annotations

import numpy as np
import pytest

from stack.errors import RuleError, StackError
from stack.ir import Block, Builder, Func, Node, param, tensor
from stack.ir.interpreter import evaluate
from stack.mesh.meshes import parse_mesh
from stack.mesh.ops import sent_bytes, traffic
from stack.ops.collectives import build
from stack.ops.collectives.execute import simulate
from stack.sim.mesh_space import MeshSpace, RankParts

b = Builder()
MESH = parse_mesh("dp=2, tp=4")
OVER = {"mesh": "dp=2, tp=4", "over": "tp"}
X = param("x", tensor("i64", 8, 12))
PARTS = [np.arange(96).reshape(8, 12) * (rank + 1) for rank in range(8)]


def run(node: Node) -> tuple[list[np.ndarray], MeshSpace]:
    space = MeshSpace(MESH)
    func = Func("f", Block([X], [node]))
    (found,) = evaluate(func.body, [RankParts(tuple(PARTS))], space)
    return list(found.parts), space


@pytest.mark.parametrize(
    ("node", "collective", "algorithm"),
    [
        (b.all_reduce(X, kind="sum", **OVER), "all_reduce", "ring"),
        (b.all_gather(X, axis=0, **OVER), "all_gather", "ring"),
        (b.reduce_scatter(X, kind="sum", axis=0, **OVER), "reduce_scatter", "ring"),
        (b.all_to_all(X, split=0, concat=1, **OVER), "all_to_all", "pairwise"),
    ],
)
def test_as_the_schedule(node: Node, collective: str, algorithm: str) -> None:
    """Values and bytes are those of messages that were sent one by one."""
    found, space = run(node)
    schedule = build(collective, algorithm, 4)
    size = PARTS[0].nbytes
    assert traffic(node) == sent_bytes(collective, 4, size) == schedule.sent_bytes(size)
    assert space.sent == {collective: traffic(node)} and space.counts == {collective: 1}
    for group in MESH.groups(MESH.axes_of("tp")):
        wanted = simulate(schedule, [PARTS[rank] for rank in group])
        for rank, want in zip(group, wanted, strict=True):
            if collective == "all_to_all":  # what comes is joined along the other dim
                want = np.concatenate(np.split(want, 4, 0), 1)
            assert np.array_equal(found[rank], want.reshape(found[rank].shape))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "and", "or"])
def test_kinds(kind: str) -> None:
    combine = {"prod": "multiply", "max": "maximum", "min": "minimum", "and": "bitwise_and"}
    combine |= {"sum": "add", "or": "bitwise_or"}
    found, _ = run(b.all_reduce(X, kind=kind, **OVER))
    assert np.array_equal(found[5], getattr(np, combine[kind]).reduce(PARTS[4:]))


def test_shard_and_permute() -> None:
    found, space = run(b.shard(X, axis=1, **OVER))
    assert np.array_equal(found[6], PARTS[6][:, 6:9])
    assert not space.sent
    order = (1, 2, 3, 0, 4, 5, 6, 7)
    found, _ = run(b.permute(X, mesh=OVER["mesh"], order=order))
    assert np.array_equal(found[1], PARTS[0]) and np.array_equal(found[0], PARTS[3])


def test_places() -> None:
    start, _ = run(b.part_start(size=10, mesh="dp=2, tp=4", over="dp, tp"))
    held, _ = run(b.part_held(size=10, mesh="dp=2, tp=4", over="dp, tp"))
    assert [int(n) for n in start] == [0, 2, 4, 6, 5, 7, 9, 11]
    assert [int(n) for n in held] == [2, 2, 1, 0, 2, 2, 1, 0]


def test_ranks_that_part_ways_are_found() -> None:
    """Ranks may take different branches of a cond only if none of these has a collective."""
    pick = b.part_start(size=4, **OVER)
    p = param("p", X.type)
    found, _ = run(b.cond(pick, X, blocks=(Block([p], [p]), Block([p], [b.neg(p)]))))
    assert np.array_equal(found[0], PARTS[0]) and np.array_equal(found[1], -PARTS[1])
    total = b.all_reduce(p, kind="sum", **OVER)
    with pytest.raises(StackError, match="take different branches"):
        run(b.cond(pick, X, blocks=(Block([p], [p]), Block([p], [total]))))


@pytest.mark.parametrize(
    ("op", "attrs", "told"),
    [
        ("all_gather", {"axis": 2}, "no dim 2"),
        ("shard", {"axis": 0, "over": "dp, tp", "mesh": "dp=3, tp=4"}, "pad it"),
        ("all_reduce", {"kind": "mean"}, "one of sum"),
        ("all_to_all", {"split": 0, "concat": 0}, "joins another"),
        ("all_gather", {"axis": 0, "over": "ep"}, "no axis 'ep'"),
    ],
)
def test_what_is_no_collective(op: str, attrs: dict[str, object], told: str) -> None:
    with pytest.raises(RuleError, match=told):
        b.op(op, [X], {**OVER, **attrs})
