"""Traits: predicates over nodes for passes. Each op's record answers them, so passes need no op
names.

Only a few ops are named here, such as `const`, `unfold`, `loop`, `load` and `store`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from stack.ir.algebra import FALLING, RISING
from stack.ir.data import Data
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Block, Node
from stack.ir.ops import algebra_of, is_view, is_whole_view, lookup, rule_of
from stack.ir.types import BOOL, MEMORY, TensorType

# ---- by element


def is_elementwise(node: Node) -> bool:
    """True if each result element depends only on the operand elements at the same index."""
    return lookup(node.op).kind == "elementwise"


@cached_by_class
def converts(node: Node) -> bool:
    """True if a node converts its operand to another element type (the same numbers, rounded)."""
    return is_elementwise(node) and algebra_of(node).converts


def reinterprets(node: Node) -> bool:
    """True if a node reinterprets its operand's bits as another element type."""
    return is_elementwise(node) and algebra_of(node).reinterprets


def unconverted(node: Node) -> Node:
    """Skips conversions: returns the first node that is no conversion, on the path from `node`
    through its operands.
    """
    while converts(node):
        node = node.args[0]
    return node


@cached_by_class
def shows(node: Node) -> bool:
    """True if a node has every element of its operand: a broadcast, reshape, transpose, or a
    conversion to another element type.
    """
    return is_whole_view(node) or converts(node)


class Selection(NamedTuple):
    """`yes` where `test` is true, else `no`."""

    test: Node
    yes: Node
    no: Node


def choice(node: Node) -> Selection | None:
    """The operands of a select as a Selection; None for other nodes."""
    chooses = is_elementwise(node) and algebra_of(node).chooses
    return Selection(*node.args) if chooses else None


def signs(node: Node) -> tuple[int, ...] | None:
    """The signs of the terms of a sum or difference; None for other nodes."""
    facts = algebra_of(node)
    is_sum = is_elementwise(node) and facts.linear == ((0, 1),)
    return facts.monotone if is_sum else None


def multiplies(node: Node) -> bool:
    """True if a node is the product of its two operands."""
    return is_elementwise(node) and algebra_of(node).linear == ((0,), (1,))


def divides(node: Node) -> bool:
    """True if a node divides its first operand by its second."""
    facts = algebra_of(node)
    return is_elementwise(node) and facts.linear == ((0,),) and facts.neutral.get(1) == 1


def negative_of(node: Node) -> Node | None:
    """The x of -x; None for other nodes."""
    facts = algebra_of(node)
    turns = facts.linear == ((0,),) and facts.inverse == node.op
    return node.args[0] if turns else None


def is_exponential(node: Node) -> bool:
    """True if f(x + y) = f(x) * f(y) for the op f of the node, as for exp."""
    return ("add", "mul") in algebra_of(node).maps


def negates(node: Node) -> bool:
    """True if a node is the logical negation of its operand."""
    return algebra_of(node).monotone == (FALLING,)


def equates(node: Node) -> bool:
    """True if a node compares its two operands for equality."""
    facts = algebra_of(node)
    return facts.reflexive is True and facts.commutative


def tests_floats(node: Node) -> bool:
    """True if a node tells something about floats, elementwise: a comparison, `isnan`.

    Its result jumps at one value. So kernels that keep 16-bit floats in f32 round its operands.
    """
    if not node.args or not is_elementwise(node):
        return False
    return node.dtype == BOOL and node.args[0].dtype.is_float


def connective(node: Node) -> int:
    """Returns 1 if a node is the logical and of two conditions, -1 if it is the or, else 0."""
    facts = algebra_of(node)
    if dict(facts.absorbing) == {0: 0, 1: 0}:
        return 1
    is_either = dict(facts.neutral) == {0: 0, 1: 0} and facts.monotone == (RISING, RISING)
    return -1 if is_either else 0


def extremum(node: Node) -> int:
    """Returns 1 if a node is the elementwise maximum of two numbers, -1 if it is the minimum, else
    0.
    """
    facts = algebra_of(node)
    if not (is_elementwise(node) and facts.exact and facts.associative):
        return 0
    return 1 if facts.neutral[0] < 0 else -1


# ---- over axes


def is_contraction(node: Node) -> bool:
    """True if a node sums products along axes that its rule names and drops."""
    op = lookup(node.op)
    return op.kind == "contraction" and op.folds is not None


def is_loop_sum(node: Node) -> bool:
    """True for a value that a loop carries, and for a sum that begins with one."""
    while node.op == "add":
        node = node.args[0]
    return node.op == "var"


def contractions(nodes: Iterable[Node]) -> list[Node]:
    """The nodes among `nodes` that are contractions."""
    return [n for n in nodes if is_contraction(n)]


def is_reduction(node: Node) -> bool:
    """True if a node combines the elements along axes in any order and from any parts."""
    op = lookup(node.op)
    return op.kind == "reduction" and op.folds is not None


def finds_position(node: Node) -> bool:
    """True if a node reduces an axis to the index of its best element, as an argmax does."""
    op = lookup(node.op)
    return op.kind == "reduction" and op.folds is None and not mixes(node)


def fold_of(node: Node) -> str:
    """The kind of reduction along the axes that a node's rule drops; "" if it reduces none."""
    folds = lookup(node.op).folds
    return folds(node) if folds else ""


# ---- views and data movement


def is_alias(node: Node) -> bool:
    """True if a node shares its operand's memory, with another shape."""
    return lookup(node.op).aliases


def behind(node: Node) -> Node:
    """Skips aliases: returns the node that they alias."""
    while is_alias(node):
        node = node.args[0]
    return node


def in_windows(node: Node) -> bool:
    """True if a node reads its operand's memory through windows that may overlap."""
    return node.op == "unfold"


def ends_with_taps(node: Node) -> bool:
    """True if a node is an `unfold`, converted or not, whose last axes are the window taps."""
    node = unconverted(node)
    at = node.attrs
    return in_windows(node) and at["axis"] + 2 * len(at["window"]) == node.tensor.rank


@cached_by_class
def spread(node: Node) -> tuple[int, ...] | None:
    """Returns, for each operand axis of a view that adds axes (a broadcast), its position in the
    result. None for other nodes.
    """
    sides = _axes_of(node)
    if sides is None or not set(sides[0]) < set(sides[1]):
        return None
    return tuple(sides[1].index(n) for n in sides[0])


def repeats(node: Node) -> bool:
    """True if a node is a view that adds axes to its operand, as a broadcast does."""
    return spread(node) is not None


def repeated(node: Node) -> Node:
    """Returns the value that a view repeats along new axes, or the node itself."""
    return node.args[0] if repeats(node) else node


@cached_by_class
def axis_order(node: Node) -> tuple[int, ...] | None:
    """Returns the axis permutation of a transpose: the operand axis of each result axis. None for
    views with other axes than the operand, and for other nodes.
    """
    sides = _axes_of(node)
    if sides is None or set(sides[0]) != set(sides[1]):
        return None
    return tuple(sides[0].index(n) for n in sides[1])


def _axes_of(node: Node) -> tuple[list[str], list[str]] | None:
    """Axis names of a view's operand and of its result; None if dims are no single axes."""
    if not is_whole_view(node) or is_alias(node):
        return None
    rule = rule_of(node)
    assert rule is not None, "a view has one"
    read, made = ([a.names[0] for a in side] for side in (rule.inputs[0], rule.outputs[0]))
    return read, made


@cached_by_class
def is_part(node: Node) -> bool:
    """True if a node is a view that omits elements of its operand, such as a slice."""
    shown = is_view(node) and not repeats(node)
    return shown and node.tensor.size != node.args[0].tensor.size


@cached_by_class
def mixes(node: Node) -> bool:
    """True if the op is no view and its results depend on elements at other indices of an axis that
    operands and results share, as in scan, sort and scatter.
    """
    rule = None if is_elementwise(node) or is_view(node) else rule_of(node)
    return rule is not None and any(a.mark for made in rule.outputs for a in made)


@cached_by_class
def is_running(node: Node) -> bool:
    """True if a node carries a value along an axis, as a scan does."""
    rule = rule_of(node) if lookup(node.op).kind == "reduction" else None
    return rule is not None and any(a.mark == "~" for made in rule.outputs for a in made)


def reads_by_data(node: Node) -> bool:
    """True if a node reads its first operand at indices that later operands contain, as a gather
    does.
    """
    return _picks(node) and not mixes(node)


def writes_by_data(node: Node) -> bool:
    """True if operands give the result indices to which others are written, as in scatter."""
    return _picks(node) and mixes(node)


@cached_by_class
def _picks(node: Node) -> bool:
    """True if a node moves elements from or to indices that its operands give, as gather and
    scatter do.
    """
    op = lookup(node.op)
    rule = rule_of(node) if op.kind == "movement" and not op.is_view else None
    return rule is not None and any(a.mark == "!" for a in rule.inputs[0])


# ---- leaves


def is_input(node: Node) -> bool:
    """True if a node represents a value from outside."""
    return lookup(node.op).kind == "input"


def is_number(node: Node) -> bool:
    """True if a node is a scalar constant."""
    return node.op == "const" and not node.tensor.rank


def number(node: Node) -> Any:
    """The value of a scalar constant as a Python number; None for other nodes."""
    return node.attrs["value"].array.item() if is_number(node) else None


def splat(node: Node) -> Any:
    """The value of a constant whose elements are all equal, through broadcasts; else None."""
    while is_whole_view(node):
        node = node.args[0]
    if node.op != "const":
        return None
    data: Data = node.attrs["value"]
    if not data.size:
        return None
    flat = data.array.reshape(-1)
    if data.size > 1 and not bool(np.all(flat == flat[0])):
        return None
    return flat[0].item()


def is_array(node: Node) -> bool:
    """True if a node is a constant of rank 1 or more, which is stored in memory."""
    return node.op == "const" and node.tensor.rank > 0


def is_constant(node: Node) -> bool:
    """True if a node is a constant, scalar or array."""
    return is_number(node) or is_array(node)


def arrays_of(*blocks: Block) -> list[Node]:
    """The constant arrays of blocks. A kernel takes them like operands."""
    return list(dict.fromkeys(n for block in blocks for n in block.nodes if is_array(n)))


def is_known(node: Node) -> bool:
    """True if a node has a value that depends on no operands or program inputs: a constant, a size,
    or an iota.
    """
    return lookup(node.op).kind == "leaf"


def is_positions(node: Node) -> bool:
    """True if a node is an iota: 0, 1, 2, ... along one axis."""
    return is_known(node) and "axis" in node.attrs


@cached_by_class
def is_formula(node: Node) -> bool:
    """True if a leaf needs no memory: a scalar constant, a size, an iota."""
    return is_number(node) or (is_known(node) and rule_of(node) is not None)


# ---- loops and memory


def is_loop(node: Node, kind: str = "") -> bool:
    """True if a node is a loop of a kernel, of kind `kind` if given."""
    return node.op == "loop" and kind in ("", node.attrs["kind"])


def loop_of(block: Block, kind: str) -> Node | None:
    """Returns the kernel loop of this kind whose results are all results of a block; None if the
    results come from several nodes or from another node.
    """
    makers = {maker(r) for r in block.results}
    loop = makers.pop()
    return loop if not makers and is_loop(loop, kind) else None


def nest_of(block: Block, kind: str) -> tuple[list[Node], Block]:
    """Returns the perfect nest of loops of one kind around a kernel's code: the loops, outermost
    first, and the body of the innermost. The list is empty if there is none.
    """
    found: list[Node] = []
    while (loop := loop_of(block, kind)) is not None:
        found.append(loop)
        block = loop.blocks[0]
    return found, block


def moved(node: Node) -> Node | None:
    """Returns the value that a kernel's memory access transfers: a load itself, or the value that a
    store writes. None for other nodes.
    """
    if node.op == "load":
        return node
    return node.args[1] if node.op == "store" else None


def is_memory(node: Node) -> bool:
    """True if a value is an array in memory (global, shared or local), not one in registers."""
    return isinstance(node.type, TensorType) and node.type.space in MEMORY


def is_load(node: Node) -> bool:
    """True if a node reads memory."""
    return node.op == "load"


def is_store(node: Node) -> bool:
    """True if a node writes memory."""
    return node.op == "store"


# ---- steps and their results


def op_names(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The op names of some nodes, each once, without constants."""
    return tuple(dict.fromkeys(n.op for n in nodes if n.op != "const"))


def is_control(node: Node) -> bool:
    """True if a node is control flow, whose blocks run one after the other: a call, a branch, a
    loop.
    """
    return lookup(node.op).kind == "control"


def runs_once(node: Node) -> bool:
    """True for a call marked `once`: its results are the same in every call of the program, so they
    may be computed once and cached.
    """
    return is_control(node) and bool(node.attrs.get("once"))


def is_while(node: Node) -> bool:
    """True if a node is a control-flow loop, which repeats its last block."""
    return is_control(node) and "trip_count" in lookup(node.op).signature


def unchanged_in(loop: Node) -> dict[Node, Node]:
    """Maps the loop-invariant parameters of the body to their initial values."""
    body = loop.blocks[-1]
    carried = zip(body.params, body.results, loop.args, strict=True)
    return {p: arg for p, result, arg in carried if p is result}


def is_group(node: Node) -> bool:
    """True if a node's blocks are executed as a unit, such as one kernel: a fusion, a stream, a
    kernel.
    """
    return lookup(node.op).kind == "group"


def runs_blocks(node: Node) -> bool:
    """True if a node executes its blocks: control flow, a fusion, a stream or a kernel."""
    return (is_control(node) or is_group(node)) and bool(node.blocks)


def is_operator(node: Node) -> bool:
    """True for a hosted operator with an axis rule. It is split over ranks by that rule, as other
    ops are, so that a rank can run its hand-written kernel; its block is only what it means.
    """
    return node.op == "custom" and "rule" in node.attrs


def is_fusion(node: Node) -> bool:
    """True if a node is a group of ops. Its attribute `kind` names what runs it."""
    return is_group(node) and "kind" in node.attrs


def is_stream(node: Node) -> bool:
    """True if a node is a `stream`: reductions along one axis, with a correction block and an
    epilogue.
    """
    return is_group(node) and len(node.blocks) == 3


def is_kernel(node: Node) -> bool:
    """True if a node is a kernel."""
    return is_group(node) and "level" in node.attrs


def is_generated(node: Node) -> bool:
    """True if a node is a fusion whose kernel the backend generates, and no library call."""
    return is_fusion(node) and node.attrs["kind"] != "library"


def is_item(node: Node) -> bool:
    """True if a node selects one of the results of its operand, a node with several results."""
    return lookup(node.op).kind == "item"


def maker(value: Node) -> Node:
    """The node that computes a value. For an `item` it is the node with several results from which
    the item is selected; other values are their own node.
    """
    return value.args[0] if is_item(value) else value


def is_computed_once(value: Node) -> bool:
    """True if a value, or what it is an alias of, is a result of a call that runs once."""
    return runs_once(maker(behind(value)))


def place_of(value: Node) -> int:
    """The index of a value among the results of its `maker`."""
    return int(value.attrs["index"]) if is_item(value) else 0


def items_of(node: Node, values: Iterable[Node]) -> list[Node]:
    """Returns those of `values` that are `item` nodes which select a result of `node`."""
    return [v for v in values if is_item(v) and v.args[0] is node]
