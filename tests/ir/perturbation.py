"""Change one element of an operand: the footprints of changed results contain it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from op_instances import Array

from stack.ir import Block, Builder, Func, Node, ops
from stack.ir.data import round_bf16
from stack.ir.dim import less_equal
from stack.ir.region import Region

# a change of an operand is seen wherever it can arrive
MOVES = ("reshape", "transpose", "broadcast", "slice", "reverse", "concat", "item")
# a nan in an operand is seen wherever it can arrive
SUMS = ("reduce", "scan", "dot")
COUNTS: Counter[str] = Counter()
b = Builder()


def run(node: Node, arrays: list[Array]) -> list[Array]:
    found = Func("f", Block(node.args, results_of(node))).interpret(*arrays)
    return list(found) if isinstance(found, tuple) else [found]


def results_of(node: Node) -> list[Node]:
    types = node.types
    return [node] if types == (node.type,) else [b.item(node, index=i) for i in range(len(types))]


def others(node: Node, operand: int, array: Array, rng: random.Random) -> Iterator[Any]:
    """Values to put in the place of one of an operand's."""
    marked = {"gather": slice(1, None), "scatter": slice(1, -1)}.get(node.op, slice(0))
    if operand in range(len(node.args))[marked]:
        rule = ops.rule_of(node)
        assert rule is not None
        axes = [i for i, axis in enumerate(rule.inputs[0]) if axis.mark == "!"]
        yield rng.randrange(int(node.args[0].shape[axes[operand - 1]]))
        return
    if array.dtype.kind == "b":
        yield from (False, True)
    elif array.dtype.kind in "iu":
        yield from (rng.randint(0, 3), rng.randint(4, 90))
    else:
        if node.op in SUMS:
            yield np.nan
        yield from (rng.uniform(0.1, 1), rng.uniform(-4, 4))
        yield from rng.sample([np.nan, np.inf, -np.inf, 0.0, 300.5], 2)


def changed(before: Array, after: Array) -> list[tuple[int, ...]]:
    with np.errstate(invalid="ignore"):
        same = (before == after) | ((before != before) & (after != after))
    return [tuple(int(i) for i in at) for at in np.argwhere(~same)]


def holds(region: Region | None, index: tuple[int, ...]) -> bool:
    """True if an element is certainly in a region."""
    pairs = zip(region, index, strict=True) if region is not None else [(None, 0)]
    return all(
        r is not None and less_equal(r.start, i) is True and less_equal(i + 1, r.stop) is True
        for r, i in pairs
    )


def readers(node: Node, operand: int, index: tuple[int, ...]) -> list[set[tuple[int, ...]]]:
    """The elements of each result whose footprints contain an element of an operand."""
    return [
        {
            place
            for place in itertools.product(*(range(int(n)) for n in type_.shape))
            if holds(ops.footprint(node, place, result)[operand], index)
        }
        for result, type_ in enumerate(node.types)
    ]


def perturb(node: Node, arrays: list[Array], operand: int, rng: random.Random) -> bool:
    """Change one element; whether a change was seen."""
    array = arrays[operand]
    index = tuple(rng.randrange(n) for n in array.shape)
    reached = readers(node, operand, index) if node.op in (*MOVES, *SUMS) else []
    before = run(node, arrays)
    seen: list[set[tuple[int, ...]]] = [set() for _ in before]
    for value in others(node, operand, array, rng):
        copy = array.copy()
        copy[index] = value
        if node.args[operand].dtype.name == "bf16":
            copy = round_bf16(copy)
        if not changed(array, copy):
            continue
        after = run(node, [*arrays[:operand], copy, *arrays[operand + 1 :]])
        for result, (old, new) in enumerate(zip(before, after, strict=True)):
            found = changed(old, new)
            seen[result].update(found)
            for place in found if reached else found[:4]:
                read = ops.footprint(node, place, result)[operand]
                assert holds(read, index), (str(node), operand, index, place, read)
        COUNTS["changes"] += 1
        is_nan = array.dtype.kind == "f" and bool(np.isnan(value)) and not np.isnan(before[0]).any()
        if node.op in MOVES or (node.op in SUMS and is_nan):
            assert seen == reached, (str(node), operand, index, seen, reached)
            COUNTS["tight"] += 1
    COUNTS["seen"] += sum(map(len, seen))
    return any(seen)
