"""No two live buffers share a byte, and the arena is never larger than all of them."""

from __future__ import annotations

import random

import pytest

from stack.explore.check import overlaps
from stack.ir import Func, Node, parse
from stack.ir.builder import rebuild
from stack.rewrite import Pipeline
from stack.run.memory import ALIGNMENT, Lifetime, place


def check(buffers: list[Lifetime]) -> int:
    offsets, total = place(buffers)
    assert len(offsets) == len(buffers)
    for i, (a, at) in enumerate(zip(buffers, offsets, strict=True)):
        assert at % ALIGNMENT == 0
        assert 0 <= at <= at + a.size <= total
        for b, other in zip(buffers[:i], offsets[:i], strict=True):
            together = a.first <= b.last and b.first <= a.last
            assert not together or at + a.size <= other or other + b.size <= at
    assert total <= sum(-(-b.size // ALIGNMENT) * ALIGNMENT for b in buffers)
    return total


@pytest.mark.parametrize("seed", range(200))
def test_live_buffers_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    steps = rng.choice([1, 3, 20])
    buffers: list[Lifetime] = []
    for _ in range(rng.randint(0, 60)):
        first = rng.randrange(steps)
        last = min(steps - 1, first + rng.choice([0, 1, 2, steps]))
        size = rng.choice([0, 1, 4, 63, 64, 65, 1000, 4096, rng.randint(0, 1 << 20)])
        buffers.append(Lifetime(size, first, last))
    check(buffers)


def test_a_chain_needs_two_buffers() -> None:
    assert check([Lifetime(640, i, i + 1) for i in range(50)]) == 2 * 640


def test_the_last_step_of_one_may_not_be_the_first_of_another() -> None:
    assert check([Lifetime(64, 0, 1), Lifetime(64, 1, 2)]) == 128
    assert check([Lifetime(64, 0, 1), Lifetime(64, 2, 3)]) == 64


def test_nothing_and_empty_buffers() -> None:
    assert place([]) == ([], 0)
    assert check([Lifetime(0, 0, 9), Lifetime(0, 0, 9)]) == 0


# ---- the plan of a program, seen by another pair of eyes

FUSED = """func @f(%x: f32[64]) -> (f32[8, 8]) at tensor {
  %a = fusion(%x) {kind="loop", name="a"} : f32[64] {(%p0: f32[64])
    %y = exp(%p0) : f32[64]
    return %y
  }
  %seen = reshape(%a) : f32[8, 8]
  %b = fusion(%x) {kind="loop", name="b"} : f32[64] {(%p0: f32[64])
    %y = neg(%p0) : f32[64]
    return %y
  }
  %c = fusion(%b) {kind="loop", name="c"} : f32[64] {(%p0: f32[64])
    %y = abs(%p0) : f32[64]
    return %y
  }
  %d = fusion(%c) {kind="loop", name="d"} : f32[64] {(%p0: f32[64])
    %y = tanh(%p0) : f32[64]
    return %y
  }
  %last = reshape(%d) : f32[8, 8]
  %e = fusion(%seen, %last) {kind="loop", name="e"} : f32[8, 8] {(%p0: f32[8, 8], %p1: f32[8, 8])
    %y = add(%p0, %p1) : f32[8, 8]
    return %y
  }
  return %e
}
"""


def planned() -> Func:
    return Pipeline("library,memory").run(parse(FUSED)).func


def places(func: Func) -> dict[str, int]:
    return {name: n.attrs["at"][0] for n, name in func.body.names.items() if "at" in n.attrs}


def test_a_value_that_is_read_through_a_reshape_keeps_its_place() -> None:
    func = planned()
    assert overlaps(func) == []
    held = places(func)
    assert held["a"] not in (held["b"], held["c"])


def test_what_a_program_returns_has_no_place_in_the_arena() -> None:
    assert places(planned())["e"] == -1


def test_an_overlap_is_found_through_a_reshape() -> None:
    def visit(node: Node, args: tuple[Node, ...], blocks: tuple) -> Node:
        attrs = {**node.attrs, "at": (0,)} if node.attrs.get("name") in ("a", "b") else node.attrs
        return Node(node.op, args, attrs, node.type, blocks)

    (found,) = overlaps(rebuild(planned(), visit))
    assert str(found).startswith("%b is written over %a, which is read later")
