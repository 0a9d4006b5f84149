"""Wrong rules over integers, bools and signs of zeros; `tests/faults/slips.py` has more.

Each has the inputs of the smallest counterexample that a check may print.
"""

from __future__ import annotations

from stack.ir.builder import Builder, constant, make
from stack.ir.node import Node
from stack.ir.traits import number
from stack.rewrite import Scope, on


@on("mul")
def halves_of_a_square(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x / 2 * 2 is x: not of odd x."""
    inner, two = node.args
    halved = inner.op == "div" and number(inner.args[1]) == 2 == number(two)
    return inner.args[0] if halved and node.dtype.is_integer else None


@on("div")
def quotient_of_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x * y / y is x: not of y = 0, nor where x * y overflows."""
    inner, y = node.args
    return inner.args[0] if inner.op == "mul" and inner.args[1] is y else None


@on("rem")
def remainder_by_mask(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x % 8 is x & 7: not of negative x."""
    x, y = node.args
    if number(y) != 8 or node.dtype.kind != "i":
        return None
    return op.and_(x, constant(7, node.dtype))


@on("shr")
def shifted_back(node: Node, op: Builder, scope: Scope) -> Node | None:
    """(x << y) >> y is x: not where bits are lost."""
    inner, y = node.args
    return inner.args[0] if inner.op == "shl" and inner.args[1] is y else None


@on("abs")
def never_negative(node: Node, op: Builder, scope: Scope) -> Node | None:
    """max(|x|, 0) is |x| backwards: abs(x) is max(x, -x), which is also wrong for unsigned x."""
    (x,) = node.args
    return op.max(x, op.neg(x)) if node.dtype.kind == "u" else None


@on("not")
def de_morgan(node: Node, op: Builder, scope: Scope) -> Node | None:
    """not (a and b) is (not a) and (not b): it is their or."""
    (inner,) = node.args
    return op.and_(op.not_(inner.args[0]), op.not_(inner.args[1])) if inner.op == "and" else None


@on("xor")
def exclusive(node: Node, op: Builder, scope: Scope) -> Node | None:
    """a xor b is a or b: not where both are true."""
    return op.or_(*node.args) if node.dtype.kind == "b" else None


@on("and")
def absorbed(node: Node, op: Builder, scope: Scope) -> Node | None:
    """a and (b or a) is b: it is a."""
    a, inner = node.args
    return inner.args[0] if inner.op == "or" and inner.args[1] is a else None


@on("add")
def carried(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x + y of small integers in more bits and back is exact; the maximum of both is not."""
    x, y = node.args
    return op.max(x, y) if node.dtype.name == "u8" else None


@on("max")
def maximum_of_zero(node: Node, op: Builder, scope: Scope) -> Node | None:
    """max(x, x + 0.0) is x: not the sign of a zero."""
    x, other = node.args
    own = other.op == "add" and other.args[0] is x and number(other.args[1]) == 0
    return x if own and node.dtype.is_float else None


@on("add")
def plus_zero(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x + 0.0 is x: not of -0.0."""
    x, zero = node.args
    return x if str(number(zero)) == "0.0" and x.type == node.type else None


@on("sub")
def difference_of_one(node: Node, op: Builder, scope: Scope) -> Node | None:
    """(x + y) - y is x: true of integers, which wrap."""
    total, y = node.args
    right = total.op == "add" and total.args[1] is y and node.dtype.is_integer
    return total.args[0] if right else None


@on("tanh")
def lost_digits(node: Node, op: Builder, scope: Scope) -> Node | None:
    """tanh(x) is 1 - 2 / (exp(2 x) + 1): not near 0, where digits cancel."""
    (x,) = node.args
    if node.dtype.name != "f32":
        return None
    return op.sub(filled(1.0, node), op.div(filled(2.0, node), op.add(op.exp(op.mul(x, 2.0)), 1.0)))


@on("exp")
def other_base(node: Node, op: Builder, scope: Scope) -> Node | None:
    """exp(x) is 2 ** (x / log(2)): its error grows with x, and is rounding."""
    (x,) = node.args
    return op.exp2(op.mul(x, 1.4426950408889634)) if node.dtype.name == "f32" else None


@on("transpose")
def same_shape(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A reshape to the shape of a transpose is no transpose."""
    return make("reshape", node.args, hint=node.type)


@on("neg")
def other_shape(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A rule that makes a value of another type."""
    return make("reduce", node.args, {"kind": "sum", "axes": (0,)}) if node.shape else None


@on("exp")
def crashes(node: Node, op: Builder, scope: Scope) -> Node | None:
    """exp(neg(x)) is exp(x) of x = neg(y): parameters have no operands, so the rule raises."""
    (inner,) = node.args
    return op.exp(inner.args[0].args[0]) if inner.args[0].op == "neg" else None


def filled(value: float, node: Node) -> Node:
    """A value of the same type whose elements are all equal."""
    return make("broadcast", (constant(value, node.dtype),), {"axes": ()}, hint=node.type)


# rule: values of the parameters in the counterexample
INTEGERS = {
    halves_of_a_square: (-1,),
    quotient_of_product: (1, 0),
    remainder_by_mask: (-1,),
    shifted_back: (-1, 8),
    never_negative: (1,),
    de_morgan: (True, False),
    exclusive: (True, True),
    absorbed: (False, True),
    carried: (1, 1),
}
