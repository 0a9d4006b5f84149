"""Traits: what passes ask of a node. Its record answers, so that a new op is taken without a word.

Nothing here knows an op but for constants and the items of tuples, which are the IR's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from stack.ir.algebra import FALLING, RISING
from stack.ir.alike import once_alike
from stack.ir.node import Block, Node
from stack.ir.ops import algebra_of, is_view, is_whole_view, lookup, rule_of

# ---- by element


def is_elementwise(node: Node) -> bool:
    """Whether an element of the result comes from the elements of the operands at its place."""
    return lookup(node.op).kind == "elementwise"


@once_alike
def converts(node: Node) -> bool:
    """Whether a node is its operand's numbers in another element type."""
    return is_elementwise(node) and algebra_of(node).converts


def reinterprets(node: Node) -> bool:
    """Whether a node is its operand's bits, as another element type reads them."""
    return is_elementwise(node) and algebra_of(node).reinterprets


def unconverted(node: Node) -> Node:
    """What conversions read."""
    while converts(node):
        node = node.args[0]
    return node


@once_alike
def shows(node: Node) -> bool:
    """Whether a node gives the elements of its operand, in other places or in another type."""
    return is_whole_view(node) or converts(node)


class Choice(NamedTuple):
    """`yes` where `test` holds, else `no`."""

    test: Node
    yes: Node
    no: Node


def choice(node: Node) -> Choice | None:
    """What a node chooses between, element by element; None where it does not."""
    chooses = is_elementwise(node) and algebra_of(node).chooses
    return Choice(*node.args) if chooses else None


def signs(node: Node) -> tuple[int, ...] | None:
    """Of a sum or difference the signs of its terms; None for other nodes."""
    facts = algebra_of(node)
    is_sum = is_elementwise(node) and facts.linear == ((0, 1),)
    return facts.monotone if is_sum else None


def multiplies(node: Node) -> bool:
    """Whether a node is the product of its two operands."""
    return is_elementwise(node) and algebra_of(node).linear == ((0,), (1,))


def divides(node: Node) -> bool:
    """Whether a node is its first operand over the second."""
    facts = algebra_of(node)
    return is_elementwise(node) and facts.linear == ((0,),) and facts.neutral.get(1) == 1


def negative_of(node: Node) -> Node | None:
    """The x of -x; None for other nodes."""
    facts = algebra_of(node)
    turns = facts.linear == ((0,),) and facts.inverse == node.op
    return node.args[0] if turns else None


def is_exponential(node: Node) -> bool:
    """Whether a node makes products of sums."""
    return ("add", "mul") in algebra_of(node).maps


def negates(node: Node) -> bool:
    """Whether a condition holds where its operand does not."""
    return algebra_of(node).monotone == (FALLING,)


def equates(node: Node) -> bool:
    """Whether a condition holds where its two operands are equal, and there alone."""
    facts = algebra_of(node)
    return facts.reflexive is True and facts.commutative


def connective(node: Node) -> int:
    """1 where a condition holds where both operands do, -1 where either does, else 0."""
    facts = algebra_of(node)
    if dict(facts.absorbing) == {0: 0, 1: 0}:
        return 1
    is_either = dict(facts.neutral) == {0: 0, 1: 0} and facts.monotone == (RISING, RISING)
    return -1 if is_either else 0


def extremum(node: Node) -> int:
    """1 where a node is the larger of two numbers, -1 where the smaller, else 0."""
    facts = algebra_of(node)
    if not (is_elementwise(node) and facts.exact and facts.associative):
        return 0
    return 1 if facts.neutral[0] < 0 else -1


# ---- over axes


def is_contraction(node: Node) -> bool:
    """Whether a node sums products along axes that its rule names and drops."""
    op = lookup(node.op)
    return op.kind == "contraction" and op.folds is not None


def contractions(nodes: Iterable[Node]) -> list[Node]:
    """Those of some nodes that are contractions."""
    return [n for n in nodes if is_contraction(n)]


def is_reduction(node: Node) -> bool:
    """Whether a node combines the elements along axes, in any order and from any parts."""
    op = lookup(node.op)
    return op.kind == "reduction" and op.folds is not None


def fold_of(node: Node) -> str:
    """The kind of reduction that a node makes of what its rule drops; "" where it makes none."""
    folds = lookup(node.op).folds
    return folds(node) if folds else ""


# ---- in other places


def is_alias(node: Node) -> bool:
    """Whether a node is its operand's memory, of another shape."""
    return lookup(node.op).aliases


def behind(node: Node) -> Node:
    """What aliases are of."""
    while is_alias(node):
        node = node.args[0]
    return node


def in_windows(node: Node) -> bool:
    """Whether a node is its operand's memory, read through windows that may overlap."""
    return node.op == "unfold"


def ends_with_taps(node: Node) -> bool:
    """Whether a node is windows, converted or not, whose taps are its last axes."""
    node = unconverted(node)
    at = node.attrs
    return in_windows(node) and at["axis"] + 2 * len(at["window"]) == node.tensor.rank


@once_alike
def spread(node: Node) -> tuple[int, ...] | None:
    """Where the axes of the operand stand in a view that has more; None for other nodes."""
    sides = _axes_of(node)
    if sides is None or not set(sides[0]) < set(sides[1]):
        return None
    return tuple(sides[1].index(n) for n in sides[0])


def repeats(node: Node) -> bool:
    """Whether a node is a view that has axes more than its operand."""
    return spread(node) is not None


@once_alike
def axis_order(node: Node) -> tuple[int, ...] | None:
    """The axes of the operand in the order of a view that has the same; None for other nodes."""
    sides = _axes_of(node)
    if sides is None or set(sides[0]) != set(sides[1]):
        return None
    return tuple(sides[0].index(n) for n in sides[1])


def _axes_of(node: Node) -> tuple[list[str], list[str]] | None:
    """Names of the axes of a view's operand and of its result; None where dims are no axes."""
    if not is_whole_view(node) or is_alias(node):
        return None
    rule = rule_of(node)
    assert rule is not None, "a view has one"
    read, made = ([a.names[0] for a in side] for side in (rule.inputs[0], rule.outputs[0]))
    return read, made


@once_alike
def is_part(node: Node) -> bool:
    """Whether a node is a view that leaves elements of its operand out."""
    shown = is_view(node) and not repeats(node)
    return shown and node.tensor.size != node.args[0].tensor.size


@once_alike
def mixes(node: Node) -> bool:
    """Whether an element of a result depends on more than its own place along an axis that the
    operands have too: of what scans, sorts or scatters."""
    rule = None if is_view(node) else rule_of(node)
    return rule is not None and any(a.mark for made in rule.outputs for a in made)


@once_alike
def is_running(node: Node) -> bool:
    """Whether a node carries something along an axis, from one place to the next."""
    rule = rule_of(node) if lookup(node.op).kind == "reduction" else None
    return rule is not None and any(a.mark == "~" for made in rule.outputs for a in made)


def reads_by_data(node: Node) -> bool:
    """Whether operands after the first say where the first is read."""
    return _picks(node) and not mixes(node)


def writes_by_data(node: Node) -> bool:
    """Whether operands say where in the result others go."""
    return _picks(node) and mixes(node)


@once_alike
def _picks(node: Node) -> bool:
    """Whether a node moves elements as data says."""
    op = lookup(node.op)
    rule = rule_of(node) if op.kind == "movement" and not op.is_view else None
    return rule is not None and any(a.mark == "!" for a in rule.inputs[0])


# ---- leaves


def is_input(node: Node) -> bool:
    """Whether a node stands for a value from outside."""
    return lookup(node.op).kind == "input"


def is_number(node: Node) -> bool:
    """Whether a node is one number, known now."""
    return node.op == "const" and not node.tensor.rank


def number(node: Node) -> Any:
    """The number that a node is, as Python's; None where it is none that is known."""
    return node.attrs["value"].array.item() if is_number(node) else None


def is_array(node: Node) -> bool:
    """Whether a node is a constant that lies in memory."""
    return node.op == "const" and node.tensor.rank > 0


def is_constant(node: Node) -> bool:
    """Whether a node is a number or an array that is known now."""
    return is_number(node) or is_array(node)


def arrays_of(*blocks: Block) -> list[Node]:
    """The constant arrays of blocks, which a kernel takes like its operands."""
    return list(dict.fromkeys(n for block in blocks for n in block.nodes if is_array(n)))


def is_known(node: Node) -> bool:
    """Whether a node is a leaf that holds what it is: a constant, a size, positions."""
    return lookup(node.op).kind == "leaf"


def is_positions(node: Node) -> bool:
    """Whether a leaf is the positions along an axis: 0, 1, 2 and so on."""
    return is_known(node) and "axis" in node.attrs


@once_alike
def is_formula(node: Node) -> bool:
    """Whether a leaf is known without data: a number, a size, positions along an axis."""
    return is_number(node) or (is_known(node) and rule_of(node) is not None)


# ---- loops and memory


def is_loop(node: Node, kind: str = "") -> bool:
    """Whether a node is a loop of a kernel, of a kind."""
    return node.op == "loop" and kind in ("", node.attrs["kind"])


def loop_of(block: Block, kind: str) -> Node | None:
    """The loop of a kind that makes all results of a block; None where there is no such."""
    makers = {maker(r) for r in block.results}
    loop = makers.pop()
    return loop if not makers and is_loop(loop, kind) else None


def nest_of(block: Block, kind: str) -> tuple[list[Node], Block]:
    """The loops of a kind at the top of a kernel, outermost first, and what they surround."""
    found: list[Node] = []
    while (loop := loop_of(block, kind)) is not None:
        found.append(loop)
        block = loop.blocks[0]
    return found, block


def moved(node: Node) -> Node | None:
    """What a node reads from memory, or writes there; None where it does neither."""
    if node.op == "load":
        return node
    return node.args[1] if node.op == "store" else None


def is_load(node: Node) -> bool:
    """Whether a node reads memory."""
    return moved(node) is node


def is_store(node: Node) -> bool:
    """Whether a node writes memory."""
    return moved(node) not in (None, node)


# ---- steps, and what they give


def op_names(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The ops of some nodes, each once; constants left out."""
    return tuple(dict.fromkeys(n.op for n in nodes if n.op != "const"))


def is_control(node: Node) -> bool:
    """Whether the blocks of a node run one step after the other: a call, a branch, a loop."""
    return lookup(node.op).kind == "control"


def runs_once(node: Node) -> bool:
    """Whether the results of a call stay as they are from call to call of the program."""
    return is_control(node) and bool(node.attrs.get("once"))


def is_while(node: Node) -> bool:
    """Whether a control op runs its last block again and again."""
    return is_control(node) and "trip_count" in lookup(node.op).signature


def unchanged_in(loop: Node) -> dict[Node, Node]:
    """Parameters of the body that no turn changes, and what the loop is given for each."""
    body = loop.blocks[-1]
    carried = zip(body.params, body.results, loop.args, strict=True)
    return {p: arg for p, result, arg in carried if p is result}


def is_group(node: Node) -> bool:
    """Whether the blocks of a node are one step: a fusion, a stream, a kernel."""
    return lookup(node.op).kind == "group"


def runs_blocks(node: Node) -> bool:
    """Whether a node is what its blocks compute, as steps or as one."""
    return (is_control(node) or is_group(node)) and bool(node.blocks)


def is_fusion(node: Node) -> bool:
    """Whether a node is a group of ops; its attribute `kind` says what will run it."""
    return is_group(node) and "kind" in node.attrs


def is_stream(node: Node) -> bool:
    """Whether a node is a group of reductions along one axis: states, how to correct them, and
    what is made of them."""
    return is_group(node) and len(node.blocks) == 3


def is_kernel(node: Node, level: str = "") -> bool:
    """Whether a node is a kernel, of a level."""
    return is_group(node) and "level" in node.attrs and level in ("", node.attrs["level"])


def is_generated(node: Node) -> bool:
    """Whether a node is a fusion that code is to be made for."""
    return is_fusion(node) and node.attrs["kind"] != "library"


def is_item(node: Node) -> bool:
    """Whether a node is one of several results of its operand."""
    return lookup(node.op).kind == "item"


def maker(value: Node) -> Node:
    """The node whose result a value is."""
    return value.args[0] if is_item(value) else value


def place_of(value: Node) -> int:
    """Which result of its maker a value is."""
    return int(value.attrs["index"]) if is_item(value) else 0


def items_of(node: Node, values: Iterable[Node]) -> list[Node]:
    """Those of some values that are results of a node with several."""
    return [v for v in values if is_item(v) and v.args[0] is node]
