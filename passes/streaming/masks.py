"""Convert additive masks of scores to selects, which show the hidden elements.

x + (c ? 0 : v) is c ? x : v if v is -inf, or so large that no digit of x remains in the sum. A
hidden element is the identity: an infinity there does not become a nan.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.ir.traits import choice, converts, signs
from stack.ir.types import BOOL
from stack.rewrite.engine import replace
from stack.rewrite.splat import splat

ABSORBS = -(2.0**120)  # half a digit of it exceeds 2 ** 95, in 32-bit floats
Mask = tuple[Node | bool, float | None]  # condition under which it is 0, and its value elsewhere


def masks_as_selects(block: Block) -> Block:
    """Returns the block with additive masks as selects."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if signs(node) != (1, 1) or node.dtype.bits > 32:
            continue
        for value, other in (node.args, node.args[::-1]):
            mask = _mask(other)
            if mask is None or mask[1] is None or isinstance(mask[0], bool):
                continue
            fill = constant(mask[1], node.dtype)
            changed[node] = make("select", (mask[0], value, fill), hint=node.type)
            break
    return replace(block, changed)


def _mask(node: Node) -> Mask | None:
    """Returns a value that is 0 or one other number, with its condition; None for other values."""
    number = splat(node)
    if isinstance(number, int | float):
        if number == 0:
            return True, None
        return (False, float(number)) if number < ABSORBS else None
    if converts(node) and node.dtype.is_float:
        return _mask(node.args[0])
    if ops.is_whole_view(node):
        found = _mask(node.args[0])
        return None if found is None else (_moved(node, found[0]), found[1])
    chosen = choice(node)
    if chosen is None:
        return None
    yes, no = _mask(chosen.yes), _mask(chosen.no)
    fills = {m[1] for m in (yes, no) if m is not None} - {None}
    if yes is None or no is None or len(fills) != 1:
        return None
    return _chosen(chosen.test, yes[0], no[0]), fills.pop()


def _moved(move: Node, test: Node | bool) -> Node | bool:
    if isinstance(test, bool):
        return test
    return make(move.op, (test,), move.attrs, hint=move.tensor.with_dtype(BOOL))


def _chosen(test: Node, yes: Node | bool, no: Node | bool) -> Node | bool:
    """Builds the condition `test ? yes : no` from `and`, `or` and `not`, where `yes` and `no` are
    conditions or known bools; operations that a known bool decides are left out."""
    if yes is no:
        return yes
    first = _both("and", test, yes)
    second = _both("and", make("not", (test,)), no)
    return _both("or", first, second)


def _both(op: str, a: Node | bool, b: Node | bool) -> Node | bool:
    """Builds `a and b` or `a or b`, as `op` says.

    If one is a known bool, returns the other one or the known result.
    """
    decides = op == "or"
    if isinstance(a, bool) or isinstance(b, bool):
        known, other = (a, b) if isinstance(a, bool) else (b, a)
        return decides if known is decides else other
    return make(op, (a, b))
