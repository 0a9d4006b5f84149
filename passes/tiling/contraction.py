"""The dots of a group: the roles of their axes, and ways to rewrite, remove or join them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.builder import converted, make, new_params, remade, spread_by_name
from stack.ir.contraction import contraction
from stack.ir.node import Block, Node, remade_block, topological
from stack.ir.traits import axis_order, contractions, converts, is_alias, is_contraction, is_input
from stack.passes.tiling.frame import CannotTile, static
from stack.schedule import Axis


@dataclass(frozen=True)
class Roles:
    """The roles of a dot's axes in a kernel, without axes of size 1."""

    left: int  # operand that has the rows
    right: int  # operand that has the lanes
    sizes: dict[str, int]
    batch: tuple[str, ...]
    panels: tuple[str, ...]  # of the right operand and the result, without the lane
    lane: str
    outer: tuple[str, ...]  # of the left operand and the result, without the row
    row: str  # "" when there is one row
    contracted: tuple[str, ...]
    is_by_lane: bool = False  # whether the left operand has the lanes too: each is a product

    @property
    def height(self) -> int:
        """The rows of a product."""
        return self.sizes[self.row] if self.row else 1

    @property
    def width(self) -> int:
        """The columns of a product."""
        return self.sizes[self.lane]

    @property
    def depth(self) -> int:
        """The products of a sum."""
        return self.count(self.contracted)

    @property
    def products(self) -> int:
        """The number of matrix products."""
        return self.count((*self.batch, *self.panels, *self.outer))

    def count(self, names: Iterable[str]) -> int:
        """Returns the number of elements along some axes together."""
        return prod(self.sizes[n] for n in names)


def product_axes(*axes: Axis) -> tuple[Axis, ...]:
    """Returns the axes of matmuls in schedules: b (batches), m (rows), n (columns) and k (depth),
    without b and m if their extent is 1.
    """
    return tuple(a for a in axes if a.extent > 1 or a.name in "nk")


def operand_names(dot: Node, position: int) -> list[str]:
    """Returns the axis names of one operand of a dot."""
    return [a.names[0] for a in parse_rule(dot.attrs["rule"]).inputs[position]]


def result_names(dot: Node) -> list[str]:
    """Returns the axis names of the result of a dot."""
    return [a.names[0] for a in parse_rule(dot.attrs["rule"]).outputs[0]]


def _sizes(dot: Node) -> dict[str, int]:
    """Returns the extents of the axes of a dot."""
    sizes: dict[str, int] = {}
    for side, arg in enumerate(dot.args):
        sizes.update(zip(operand_names(dot, side), map(static, arg.shape), strict=True))
    return sizes


def roles_of(dot: Node, by_lane: bool = False) -> Roles:
    """Finds which axes of a dot are rows, columns (lanes), batches and contracted.

    `by_lane`: both operands may have the axis of lanes, if it is contiguous in the left one.

    Raises:
        CannotTile: no operand has lanes of its own, nothing is contracted, or an axis is empty.
    """
    names = contraction(parse_rule(dot.attrs["rule"]))
    output, sides = names.result, (names.left, names.right)
    if any(len(set(axes)) != len(axes) for axes in (*sides, output)):
        raise CannotTile("an operand of the dot has the same axis twice")
    sizes = _sizes(dot)
    if 0 in sizes.values():
        raise CannotTile("an axis of the dot is empty")
    if not output:
        raise CannotTile("the result of the dot is a scalar")
    lane = output[-1]
    is_by_lane = lane in names.batch
    is_run = names.left[-1:] == (lane,)
    if is_by_lane and not (by_lane and is_run and names.rows and not names.columns):
        raise CannotTile("the last axis of the dot's result is a batch axis")
    right = 1 if lane in names.columns or is_by_lane else 0
    real = {n for n, size in sizes.items() if size > 1}
    for name in names.lone:
        if name in real:
            raise CannotTile(f"axis {name} of the dot is summed in one operand only")
    summed = [n for n in sides[right] if n in names.contracted]
    if not summed:
        raise CannotTile("nothing is contracted")
    left_only, right_only = (names.rows, names.columns)[:: 1 if right else -1]
    mine = [n for n in left_only if n in real]
    row = max(reversed(mine), key=lambda n: sizes[n], default="")
    return Roles(
        1 - right,
        right,
        sizes,
        tuple(n for n in names.batch if n in real and n != lane),
        tuple(n for n in right_only if n in real and n != lane),
        lane,
        tuple(n for n in mine if n != row),
        row,
        tuple(n for n in summed if n in real) or (summed[-1],),
        is_by_lane,
    )


def as_reduction(group: Node, dot: Node) -> Node:
    """Rewrites the dot of a group as an elementwise multiplication and a sum. Returns the group."""
    kept = result_names(dot)
    # an axis of one operand alone, of size 1, may be left
    names = list(dict.fromkeys([*kept, *operand_names(dot, 0), *operand_names(dot, 1)]))
    sizes = _sizes(dot)
    shape = [sizes[n] for n in names]
    is_wider = dot.dtype.bits > dot.args[0].dtype.bits  # a product could overflow
    sides = [converted(a, dot.dtype if is_wider else a.dtype) for a in dot.args]
    spread = [
        spread_by_name(x, operand_names(dot, side), names, shape) for side, x in enumerate(sides)
    ]
    axes = tuple(range(len(kept), len(names)))
    total = make("reduce", (make("mul", spread),), {"kind": "sum", "axes": axes})
    body = group.blocks[0]
    results = remade(body.results, {dot: converted(total, dot.dtype)})
    block = remade_block(body, results, body.params)
    return Node("fusion", group.args, group.attrs, group.type, (block,))


def split_dot(group: Node) -> tuple[Node, Node]:
    """Splits a group into its dot alone, for a library call, and a group that computes everything
    else. Raises CannotTile if an operand of the dot is computed in the group, or the dot is a
    result.
    """
    body = group.blocks[0]
    (dot,) = contractions(body.nodes)
    outside = dict(zip(body.params, group.args, strict=True))
    if any(a not in outside for a in dot.args) or dot in body.results:
        raise CannotTile("its dot has a prologue, or is a result of the group")
    bare = Node("dot", [outside[a] for a in dot.args], dot.attrs, dot.type)
    args, rest = rest_of(group, {dot: bare}, body.results)
    attrs = {**group.attrs, "kind": "loop"}
    return bare, Node("fusion", args, attrs, group.type, (rest,))


def rest_of(
    group: Node, made: Mapping[Node, Node], results: Sequence[Node]
) -> tuple[list[Node], Block]:
    """Returns the arguments and the body of a group without the dots that `made` replaces."""
    body = group.blocks[0]
    outside = dict(zip(body.params, group.args, strict=True))
    held = dict(zip(made, new_params("dot", [d.type for d in made], body.params), strict=True))
    outside |= {held[d]: value for d, value in made.items()}
    done = remade(results, held)
    used = topological([done[r] for r in results])
    params = [p for p in outside if p in used]
    kept = Block(body.params, results, body.names, body.locs)
    return [outside[p] for p in params], remade_block(kept, done, params)


# ---- several matmuls of one left operand in one kernel, which reads that operand once
#
# `f(x @ a) * (x @ b)` then neither writes nor reads the two matmuls. Their accumulators share the
# registers of a program, so each matmul has a part of a tile. The work for each byte is the same as
# in one matmul with all right operands side by side. `gpu_products/tile_choice.py`
# predicts whether that is faster than separate kernels.

MOST = 8  # matmuls: each has at least 16 of 128 columns, the least of tensor cores


def left_of(dot: Node) -> tuple[Node, tuple[int, ...]] | None:
    """Returns the operand with the rows, and the position of each of its axes in the result; -1 for
    the contracted axis. None unless exactly one axis is contracted and one operand has the lanes.
    """
    inputs, output = [operand_names(dot, side) for side in range(2)], result_names(dot)
    if not output or all(output[-1] in names for names in inputs):
        return None
    side = 0 if output[-1] in inputs[1] else 1
    places = tuple(output.index(n) if n in output else -1 for n in inputs[side])
    return (dot.args[side], places) if places.count(-1) == 1 else None


def why_unfused(dots: Sequence[Node]) -> str:
    """Returns why one kernel cannot compute several matmuls; "" if it can."""
    if len(dots) > MOST:
        return f"{len(dots)} matmuls share the registers of a program, at most {MOST} can"
    first = dots[0]
    for dot in dots[1:]:
        if dot.type != first.type or dot.args[0].dtype != first.args[0].dtype:
            return f"one kernel cannot compute matmuls of types {dot.type} and {first.type}"
        left = left_of(dot)
        if left is None or left != left_of(first):
            return "matmuls with different left operands need separate kernels"
    return ""


def parts_of(body: Block) -> list[tuple[Node, list[Node]]]:
    """Returns the matmuls of a group, each with the results that depend on it alone. Empty if there
    is one matmul, or if a result depends on none or several."""
    dots = contractions(body.nodes)
    parts: dict[Node, list[Node]] = {dot: [] for dot in dots}
    for result in body.results:
        made_of = [n for n in topological([result]) if is_contraction(n)]
        if len(made_of) != 1:
            return []
        parts[made_of[0]].append(result)
    return list(parts.items()) if len(dots) > 1 else []


def products_of(body: Block) -> list[Node]:
    """Returns the matmuls of a group; one program computes them all.

    Raises CannotTile if none can: more than `MOST` matmuls, different left operands or types.
    """
    dots = contractions(body.nodes)
    why = why_unfused(dots) if dots else ""
    if why:
        raise CannotTile(why)
    return dots


def contracted_sizes(dot: Node) -> list[int]:
    """Returns the sizes of the contracted axes of a dot, those of neighbours in memory multiplied:
    no op treats them separately, so pass `coalesce` merges them.
    """
    rule = parse_rule(dot.attrs["rule"])
    sizes = rule.sizes([a.shape for a in dot.args])
    sides = [[axis.names for axis in operand] for operand in rule.inputs]
    runs: list[list[str]] = []
    for name in rule.reduced:
        last = (runs[-1][-1], name) if runs else ("", name)
        if all(_are_neighbours(*side, *last) for side in zip(dot.args, sides, strict=True)):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [prod(static(sizes[name]) for name in run) for run in runs]


def _are_neighbours(value: Node, names: list[tuple[str, ...]], first: str, second: str) -> bool:
    """True if the axis `second` of a dot's operand follows the axis `first`, also in the memory
    that the operand is loaded from."""
    if (first,) not in names:
        return False
    pair = names.index((first,)), names.index((second,))
    while pair[0] + 1 == pair[1] and not is_input(value):
        order = axis_order(value)
        if order is not None:
            pair = order[pair[0]], order[pair[1]]
        elif is_alias(value):
            axes, old = ([i for i, n in enumerate(v.shape) if n != 1] for v in (value, *value.args))
            if [value.shape[i] for i in axes] != [value.args[0].shape[i] for i in old]:
                return False  # it splits or merges axes
            if not {*pair} <= {*axes}:
                return False
            pair = old[axes.index(pair[0])], old[axes.index(pair[1])]
        elif not converts(value):
            return False
        (value,) = value.args
    return pair[0] + 1 == pair[1]
