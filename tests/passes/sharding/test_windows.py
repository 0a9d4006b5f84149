"""Windows over dims that are split: ranks exchange what is missing at their borders."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from op_instances import instance
from sharded_cases import annotated, differences, function, partition

import stack
from stack import sim
from stack.errors import VerifyError
from stack.ir import Func, parse
from stack.ir.types import tensor
from stack.mesh.meshes import parse_mesh
from stack.mesh.ops import traffic
from stack.mesh.overlap import Overlap, messages, sends
from stack.mesh.sharding import sharded
from stack.passes.sharding.route import route
from stack.rewrite import Pipeline
from stack.run.mesh import simulate
from stack.sim import machine

CONV = """func @f(%x: f32[2, 3, 64], %w: f32[5, 3, 3]) -> (f32[2, 5, 64]) at tensor {
  %y = conv(%x, %w) {groups=1, high=[1], lhs_dilation=[1], low=[1], rhs_dilation=[1], stride=[1]} : f32[2, 5, 64]
  return %y
}
"""  # noqa: E501
PARTITIONED = """func @f(%x: f32[2, 3, 16], %w: f32[5, 3, 3]) -> (f32[2, 5, 16]) at tensor {
  %x.at = halo(%x) {axis=2, mesh="tp=4", over="tp", overlap=[-1, 17, 16], size=64} : f32[2, 3, 18]
  %y = conv(%x.at, %w) {groups=1, high=[0], lhs_dilation=[1], low=[0], rhs_dilation=[1], stride=[1]} : f32[2, 5, 16]
  return %y
}
"""  # noqa: E501
M = parse_mesh("dp=2, tp=4")


def placed(text: str, *shard: str, mesh: str = "tp=4") -> Func:
    told = ", ".join(f'"{s}"' for s in shard)
    passes = f'annotate{{mesh="{mesh}", shard=[{told}]}},propagate,reshard'
    return Pipeline(passes).run(parse(text)).func


def halos(func: Func) -> list[tuple[int, ...]]:
    local = Pipeline("spmd").run(func).func
    return [node.attrs["overlap"] for node in local.nodes if node.op == "halo"]


def test_a_convolution_split_in_space() -> None:
    func = placed(CONV, "x: -, -, tp")
    assert "reshard(%x) : f32[2, 3, 64{tp, -1:17:16}] @m" in str(func)
    local = Pipeline("spmd").run(func).func
    assert str(local) == PARTITIONED
    assert sum(map(traffic, local.nodes)) == 2 * 2 * 3 * 4  # a column of two images for each side
    assert parse(str(func)) is func
    assert str(Pipeline("spmd").run(parse(str(func))).func) == PARTITIONED


def test_a_machine_takes_a_message_for_each_neighbour() -> None:
    h100 = machine("h100")
    found = sim.simulate(parse(PARTITIONED), parse_mesh("tp=4"), h100)
    (event,) = {(e.start, e.end) for e in found.events if e.name == "halo"}
    link = h100.links[0]
    assert event[1] - event[0] == pytest.approx(2 * (link.alpha + link.beta * 2 * 3 * 4))


def test_the_gradient_of_its_weight_sums_over_space() -> None:
    """The same halo of what the weight read, and the long window makes sums that stay open."""
    text = """func @f(%x: f32[2, 3, 64], %dy: f32[2, 5, 64]) -> (f32[5, 3, 3]) at tensor {
  %dw = conv(%x, %dy) {groups=1, high=[1], lhs_dilation=[1], low=[1], over_images=true, rhs_dilation=[1], stride=[1]} : f32[5, 3, 3]
  return %dw
}"""  # noqa: E501
    func = placed(text, "x: -, -, tp", "dy: -, -, tp")
    assert "%dw = conv" in str(func) and "partial(sum: tp)" in str(func)
    assert halos(func) == [(-1, 17, 16)]


SHIFTED = """func @f(%x: i64[64]) -> (i64[63]) at tensor {
  %a = slice(%x) {limit=[64], start=[1], step=[1]} : i64[63]
  %b = slice(%x) {limit=[63], start=[0], step=[1]} : i64[63]
  %y = sub(%a, %b) : i64[63]
  return %y
}"""


def test_a_difference_of_neighbours_sends_one_element() -> None:
    func = placed(SHIFTED, "x: tp")
    local = Pipeline("spmd").run(func).func
    assert sum(map(traffic, local.nodes)) == 8
    x = np.arange(64) ** 2
    (found,) = simulate(func, local, [x], filler=77).results
    assert np.array_equal(found, np.diff(x))


def test_two_readers_share_a_halo() -> None:
    (line,) = (line for line in CONV.splitlines() if "conv" in line)
    again = line.replace("%y", "%z").replace("%w)", "%v)")
    text = CONV.replace("%w: f32[5, 3, 3]", "%w: f32[5, 3, 3], %v: f32[5, 3, 3]")
    text = text.replace("  return %y", f"{again}\n  %s = add(%y, %z) : f32[2, 5, 64]\n  return %s")
    assert len(halos(placed(text, "x: -, -, tp"))) == 1


@pytest.mark.parametrize("op", ["slice", "pad", "conv", "reverse"])
def test_parts_equal_the_whole(op: str) -> None:
    """With places that all values of a random node may have."""
    rng = random.Random(f"windows {op}")
    counts: Counter[str] = Counter()
    while counts["cases"] < 25:
        made = instance(op, rng)
        if made is None or not all(np.asarray(a).size for a in made[1]):
            continue
        func = function(made[0])
        case = annotated(func, parse_mesh(rng.choice(("a=2", "a=3", "a=2, b=2"))), rng)
        if not case.meshes:
            continue
        planned, local = partition(case)
        found = simulate(planned, local, made[1], filler=77)
        dtypes = [r.dtype.name for r in func.results]
        wrong = differences(func.interpret(*made[1]), found.results, dtypes)
        assert not wrong, f"{case}{planned}{local}{wrong}"
        counts["cases"] += 1
        counts.update(found.counts)
    print(op, dict(counts))
    assert counts["halo"]


@pytest.mark.parametrize(
    ("overlap", "steps", "sent"),
    [
        (Overlap(-1, 17, 16), ["halo"], 2),
        (Overlap(-20, 36, 16), ["halo"], 16 + 16 + 4),  # two neighbours on each side
        (Overlap(1, 17, 16), ["halo"], 1),
        (Overlap(32, 40, 8), ["halo"], 16),  # the last half, which two ranks hold
    ],
)
def test_ways_to_overlapping_parts(overlap: Overlap, steps: list[str], sent: int) -> None:
    type_ = tensor("i64", 64)
    axes = (M.axes_of("tp"),)
    way = route(type_, sharded(M, axes), sharded(M, axes, overlaps=(overlap,)))
    assert [step.op for step in way.steps] == steps
    assert way.bytes == 8 * sent
    whole = route(type_, sharded(M, ((),)), sharded(M, axes, overlaps=(overlap,)))
    assert ([step.op for step in whole.steps], whole.bytes) == (["shard"], 0)


def test_messages_bring_what_is_inside() -> None:
    rng = random.Random(3)
    for _ in range(200):
        size, ranks = rng.randint(1, 20), rng.randint(1, 5)
        start = rng.randint(-5, 20)
        overlap = Overlap(start, start + rng.randint(1, 12), rng.randint(-4, 6))
        part = -(-size // ranks)
        found: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        for m in messages(size, ranks, overlap):
            assert m.source * part <= m.start < m.stop <= (m.source + 1) * part
            found[m.target] += range(m.start, m.stop)
        for rank, held in found.items():
            first = overlap.first(rank)
            assert sorted(held) == [i for i in range(first, first + overlap.size) if 0 <= i < size]
        assert sum(sends(size, ranks, overlap)) <= sum(map(len, found.values()))


def test_only_a_reshard_overlaps() -> None:
    text = "func @f<@m(tp=4)>(%x: f32[8{tp, -1:3:2}] @m) -> (f32[8{tp, -1:3:2}] @m) at tensor {\n"
    with pytest.raises(VerifyError, match="only a reshard makes parts that overlap, not param"):
        stack.verify(parse(text + "  return %x\n}"))
