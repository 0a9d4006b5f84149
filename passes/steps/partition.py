"""Index-set splitting: cut loops at constant iterations, and remove guards constant in a part.

Source: index-set splitting (Wolfe, High Performance Compilers, 1996); loop partitioning and
`specialize` of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stack.ir.builder import constant, filled, make, results_of
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node, topological
from stack.ir.traits import Selection, choice, connective, is_load, is_loop, is_store
from stack.ir.types import TensorType
from stack.passes.steps.affine import (
    WHOLE,
    Ranges,
    folded,
    held,
    is_condition,
    place_of,
    split_points,
)
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    axes,
    axis_of,
    extent_of,
    held_like,
    loops_along,
    why_kept,
    why_not_free,
)
from stack.passes.steps.step import LoopStep, Step
from stack.passes.steps.tiles import conjunction
from stack.target import Target


@dataclass(frozen=True)
class Partition(LoopStep, name="partition"):
    """Cut the loops over an axis at some iterations.

        loop(%o) {(%j < 100, ...)                  partition j 20
          %test = ge(%j, 20)
          %a = load(%p0, %j, ...)                  %first = loop(%o) {(%j < 20, ...)
          %b = load(%p1, add(%j, -20), ...)          store(..., load(%p0, %j), %j) }
          store(..., select(%test, %b, %a), %j) }  loop(%first) {(%j < 80, ...)
                                                     store(..., load(%p1, %j), add(%j, 20)) }

    Guards that become constant in a part are removed: the parts of a concatenation become plain
    copies. Later steps about the axis apply to all parts. To treat the last part differently, use
    `peel`.

    Legal for a serial loop and increasing points inside of it, if all parts together stay below
    4096 values, not counting loads, indices, guards and selections.

    Attributes:
        points: the first iteration of each part but the first, separated by commas.
    """

    points: str

    @property
    def numbers(self) -> list[int]:
        """The iterations at which loops are cut; empty if the text is not a list of integers."""
        words = self.points.split(",")
        return [int(word) for word in words] if all(word.isdigit() for word in words) else []

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        points = self.numbers
        if not points:
            yield f"axis {self.axis}: {self.points!r} is no list of iterations, as 20,40"
        for loop, _ in loops_along(kernel, self.axis):
            ends = [0, *points, extent_of(loop)]
            if any(a >= b for a, b in pairwise(ends)):
                yield f"axis {self.axis}: {self.points} do not increase from 1 to {ends[-1] - 1}"
            values = (len(points) + 1) * (2 + sum(map(_is_work, loop.blocks[0].all_nodes)))
            if values > MOST:
                yield f"axis {self.axis}: {values} values in all parts, the most is {MOST}"

    def change(self, edit: Edit, loop: Node) -> list[Node]:
        values: Sequence[Node] = starts_of(loop)
        for part, begin, end in _parts(edit, loop, [0, *self.numbers, extent_of(loop)]):
            values = results_of(part_of(edit, part, begin, end, values, self.axis))
        return list(values)


def _parts(edit: Edit, loop: Node, ends: Sequence[int]) -> Iterator[tuple[Node, int, int]]:
    """Yields a loop for each part, its first iteration and the one after its last.

    The loop lacks some of the guards that are constant in the part: they are removed for halves of
    the parts first, so that the time does not grow with the square of their number.
    """
    if len(ends) == 2:
        yield loop, ends[0], ends[1]
        return
    middle = len(ends) // 2
    (block,) = loop.blocks
    for own in (ends[: middle + 1], ends[middle:]):
        half = block
        if len(own) > 2:
            half = without_guards(edit, block, {block.params[0]: (own[0], own[-1] - 1)})
        yield from _parts(edit, loop.rebuilt(blocks=[half]), own)


def part_of(
    edit: Edit, loop: Node, begin: int, end: int, values: Sequence[Node], axis: str
) -> Node:
    """Builds the loop over the iterations from `begin` up to `end` of a loop, without the guards
    that are constant in them. `values` are the carried values before it, `axis` is its axis.
    """
    var, *held = loop.blocks[0].params
    own = along(axis, end - begin, var)
    place = make("add", (own, constant(begin, var.dtype))) if begin else own
    body = edit.body(loop.blocks[0], {var: place}, (own, *held))
    return make("loop", values, loop.attrs, (without_guards(edit, body),))


def _is_work(node: Node) -> bool:
    """True if a value costs code in each part: no load, guard, selection or index."""
    if is_load(node) or choice(node) is not None or not isinstance(node.type, TensorType):
        return False
    is_index = node.dtype.kind == "i" and place_of(node) is not None
    return not (is_index or is_condition(node))


LAST = ".last"  # the suffix of peeled axes


@dataclass(frozen=True)
class Peel(LoopStep, name="peel"):
    """Peel the last iterations of the loops over an axis `a` into loops over `a.last`.

        loop(%o0) {(%r.0 < 8, ...)           peel r.0 2        %first = loop(%o0) {(%r.0 < 6, ...)
                                                               loop(%first) {(%r.0.last < 2, ...)

    Loops inside of the peeled one get the suffix `.last` too, so that later steps can give the rest
    other tiles. Guards that become constant in one of the loops are removed: the parts of a
    concatenation become plain copies. If two peeled loops are unrolled, their common loads are
    executed once. Legal for a serial loop with more than N iterations.

    Attributes:
        turns: the number of iterations to peel.
    """

    turns: int

    @property
    def last(self) -> str:
        """The axis of the peeled loops."""
        return f"{self.axis}{LAST}"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        known = axes(kernel)
        for loop, _ in loops_along(kernel, self.axis):
            inside = [axis_of(inner) for inner in loop.blocks[0].all_nodes if is_loop(inner)]
            taken = known.keys() & {f"{axis}{LAST}" for axis in (self.axis, *inside)}
            if taken:
                yield f"axis {self.axis}: axis {min(taken)} exists already"
            if not 0 < self.turns < extent_of(loop):
                yield f"axis {self.axis}: cannot peel {self.turns} of {extent_of(loop)} iterations"

    def change(self, edit: Edit, loop: Node) -> Node:
        count = extent_of(loop) - self.turns
        before = part_of(edit, loop, 0, count, starts_of(loop), self.axis)
        rest = part_of(edit, loop, count, extent_of(loop), results_of(before), self.last)

        def visit(_: Node, made: Node) -> Node | None:
            if not is_loop(made):
                return None
            var, *held = made.blocks[0].params
            own = along(f"{axis_of(made)}{LAST}", extent_of(made), var)
            return made.rebuilt(blocks=[edit.body(made.blocks[0], {var: own}, (own, *held))])

        return rest.rebuilt(blocks=[edit.rewritten(rest.blocks[0], visit)])


@dataclass(frozen=True)
class Specialize(Step, name="specialize"):
    """Specialize the ranges of an axis between the points where guards change.

        loop(...) {(%j < 5, %o)                    loop(...) {(%j < 5, %o)
          store(%o, load(%p, %j, lt(%j, 3), 0))      %a = loop(0, select(lt(%j, 3), 1, 0), %o) {
        }                                              store(%o, load(%p, %j)) }
                                                     loop(0, select(ge(%j, 3), 1, 0), %a) {
                                                       store(%a, 0) }
                                                   }

    Each range becomes a loop of one iteration or none, in which the guards are constant. Unlike
    `peel`, the loop itself stays whole, so that threads or programs still share all of it. With
    `at=k` the code goes into the inner loop over k; threads can then share both loops.

    Legal if some guard changes at a constant iteration, and the copies stay below 4096 values.

    Attributes:
        at: the axis of the loops that get the code; by default the same.
    """

    axis: str
    at: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        yield why_not_free(kernel, self.at or self.axis)
        points = split_points(kernel).get(self.axis, ())
        if not points:
            yield f"no guard changes at a constant iteration of {self.axis}"
        for loop, around in loops_along(kernel, self.at or self.axis):
            if not any(axis_of(outer) == self.axis for outer in (*around, loop)):
                yield f"a loop over {self.at} is not inside a loop over {self.axis}"
            yield why_too_many(loop, len(points) + 1)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        points = split_points(kernel)[self.axis]
        found = loops_along(kernel, self.axis)
        variables = {loop.blocks[0].params[0] for loop, _ in found}

        def change(_: Node, loop: Node) -> Node:
            block = loop.blocks[0]
            needed = {block.params[0], *(v for r in block.results for v in r.vars)}
            mine = [v for v in variables if v in needed]
            # loops over one axis may have different extents, after `partition` or `peel`
            own = [p for p in points if mine and p < int(mine[0].attrs["extent"])]
            return loop.rebuilt(blocks=[_in_ranges(edit, block, mine[0], own)]) if own else loop

        return edit.change_loops(self.at or self.axis, change)


def _in_ranges(edit: Edit, block: Block, var: Node, points: Sequence[int]) -> Block:
    """Returns the body of a loop as several copies, one for each range of a variable between
    `points`; each runs only in its range, with guards simplified.
    """
    held = block.params[1:]
    extent = int(var.attrs["extent"])
    values: Sequence[Node] = held
    # loops before this one have their results already
    fixed = {
        n: n
        for n in topological(block.results)
        if is_loop(n) and var in n.vars and n.vars.isdisjoint(block.params)
    }
    for begin, end in zip([0, *points], [*points, extent], strict=True):
        tests = [make("ge", (var, constant(begin, var.dtype)))] if begin else []
        tests += [make("lt", (var, constant(end, var.dtype)))] if end < extent else []
        test = conjunction(tests)
        assert test is not None, "there are several ranges"
        zero, one = constant(0, var.dtype), constant(1, var.dtype)
        once = along(edit.names.own(f"{var.attrs['name']}.is"), 1, var)
        own = held_like(held, edit.names)
        # indices depend on the inner variable, so that no load is hoisted out of its guard
        known = {var: make("add", (var, once)), **fixed, **dict(zip(held, own, strict=True))}
        ranges = {var: (begin, end - 1)}
        inside = Block((once, *own), edit.values(block.results, known))
        attrs = {"kind": "serial", "limited": True}
        start = [zero, make("select", (test, one, zero)), *values]
        values = results_of(make("loop", start, attrs, (without_guards(edit, inside, ranges),)))
    return Block(block.params, values)


MOST = 4096  # values; more code would not fit in the instruction cache


def why_too_many(loop: Node, copies: int) -> str:
    """Returns why so many copies of a loop's body have too many values; "" if they do not."""
    values = copies * len(loop.blocks[0].all_nodes)
    if values <= MOST:
        return ""
    return f"axis {axis_of(loop)}: {values} values in all copies, the most is {MOST}"


@dataclass(frozen=True)
class Unroll(LoopStep, name="unroll"):
    """Unroll the loops over an axis.

        loop(0.0) {(%r < 2, %acc)           unroll r       add(add(0.0, load(%p0, 0)), load(%p0, 1))
          add(%acc, load(%p0, %r)) }

    Legal for a serial loop whose copies have at most 4096 values together, and whose body does not
    use local memory of its own.

    Source: `unroll` of Halide and TensorIR.
    """

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        for loop, _ in loops_along(kernel, self.axis):
            yield why_kept(loop)
            yield why_too_many(loop, extent_of(loop))

    def change(self, edit: Edit, loop: Node) -> list[Node]:
        block = loop.blocks[0]
        var, *held = block.params
        values = list(starts_of(loop))
        for turn in range(extent_of(loop)):
            known = dict(zip(held, values, strict=True))
            known[var] = constant(turn, var.dtype)
            values = edit.values(block.results, known, visit=folded)
        return values


def without_guards(edit: Edit, block: Block, ranges: Ranges = WHOLE) -> Block:
    """Removes the selections, masks and conditions of a block that are constant.

    `ranges`: the iterations that run, for variables that do not run over their whole extent.
    """

    def visit(_: Node, made: Node) -> Node:
        guard = _guard(made)
        value = held(guard.test, ranges) if guard is not None else None
        if guard is not None and value is not None:
            return filled(guard.yes if value else guard.no, made)
        if not is_condition(made):
            return made
        if (value := held(made, ranges)) is not None:
            return filled(constant(value, made.dtype), made)
        left = [a for a in made.args if held(a, ranges) is None]
        return left[0] if connective(made) and len(left) == 1 else made

    return edit.rewritten(block, visit)


def _guard(node: Node) -> Selection | None:
    """Returns a select node, or a masked load or store, as a selection: where its mask is false, an
    access is the value of masked lanes, or the memory before it. None for other nodes.
    """
    if not (is_load(node) or is_store(node)):
        return choice(node)
    index, mask, other = access_parts(node)
    if mask is None:
        return None
    operands = [*node.args[: 1 if is_load(node) else 2], *index]
    skipped = node.args[0] if is_store(node) else other
    assert skipped is not None
    return Selection(mask, make(node.op, operands, node.attrs, hint=node.type), skipped)
